#pragma once

#include <cmath>

#include "models/decoder/config.h"

namespace ddptrain::tests {

/// A second family of transformers: RMS norms, rotary positions, SwiGLU, grouped keys and values, no biases, an output
/// layer with a weight of its own. All of it is a table.
inline DecoderTable tiny_llama(std::int64_t layers = 4) {
  DecoderTable table;
  table.config = {.layers = layers,
                  .width = 24,
                  .heads = 8,
                  .key_heads = 4,
                  .head_size = 6,
                  .hidden = 40,
                  .sequence = 8,
                  .vocabulary = 61,
                  .norm = NormKind::rms,
                  .positions = PositionKind::rotary,
                  .rotary_base = 100.0,
                  .activation = MlpActivation::swiglu,
                  .qkv_bias = false,
                  .output_bias = false,
                  .mlp_bias = false,
                  .tied_head = false};
  table.names = {.token_embedding = "embed_tokens",
                 .final_norm = "norm",
                 .head = "lm_head",
                 .block = "layers",
                 .attention_norm = "input_layernorm",
                 .qkv = "self_attn.qkv_proj",
                 .attention_output = "self_attn.o_proj",
                 .query_norm = "self_attn.q_norm",
                 .key_norm = "self_attn.k_norm",
                 .mlp_norm = "post_attention_layernorm",
                 .mlp_in = "mlp.gate_up_proj",
                 .mlp_out = "mlp.down_proj"};
  table.weight = InitialValue::normal(0.02f);
  table.residual_weight = InitialValue::normal(0.02f / std::sqrt(2.0f * static_cast<float>(layers)));
  return table;
}

}  // namespace ddptrain::tests
