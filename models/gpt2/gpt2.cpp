#include "models/gpt2/gpt2.h"

#include <cmath>

namespace ddptrain {

DecoderTable gpt2_table(const Gpt2Shape& shape) {
  DecoderTable table;
  table.config = {.layers = shape.layers,
                  .width = shape.width,
                  .heads = shape.heads,
                  .key_heads = shape.heads,
                  .head_size = shape.heads > 0 && shape.width % shape.heads == 0 ? shape.width / shape.heads : 0,
                  .hidden = shape.feed_forward,
                  .sequence = shape.sequence,
                  .vocabulary = shape.vocabulary,
                  .norm = NormKind::layer,
                  .norm_epsilon = shape.norm_epsilon,
                  .positions = PositionKind::learned,
                  .activation = MlpActivation::gelu,
                  .qkv_bias = true,
                  .output_bias = true,
                  .mlp_bias = true,
                  .tied_head = true};
  table.names = {.token_embedding = "wte",
                 .position_embedding = "wpe",
                 .final_norm = "ln_f",
                 .block = "h",
                 .attention_norm = "ln_1",
                 .qkv = "attn.c_attn",
                 .attention_output = "attn.c_proj",
                 .mlp_norm = "ln_2",
                 .mlp_in = "mlp.c_fc",
                 .mlp_out = "mlp.c_proj"};
  table.weight = InitialValue::normal(0.02f);
  table.residual_weight = InitialValue::normal(0.02f / std::sqrt(2.0f * static_cast<float>(shape.layers)));
  return table;
}

std::vector<ParameterSpec> gpt2_parameters(const Gpt2Shape& shape, const TensorSlice& slice) {
  return decoder_parameters(gpt2_table(shape), slice).specs;
}

}  // namespace ddptrain
