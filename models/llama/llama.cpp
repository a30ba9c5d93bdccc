#include "models/llama/llama.h"

#include <cmath>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

// Units of numbers that sizes() has as integers. They are exact for the values that models have.
constexpr double kEpsilonUnit = 1e12;
constexpr double kBaseUnit = 1e3;
constexpr double kFactorUnit = 1e6;

}  // namespace

std::map<std::string, std::int64_t> LlamaShape::sizes() const {
  std::map<std::string, std::int64_t> sizes = {{"layers", layers},
                                               {"width", width},
                                               {"heads", heads},
                                               {"key_heads", all_key_heads()},
                                               {"head_size", size_of_head()},
                                               {"feed_forward", feed_forward},
                                               {"sequence", sequence},
                                               {"positions", most_positions()},
                                               {"vocabulary", vocabulary},
                                               {"norm_epsilon_e12", std::llround(norm_epsilon * kEpsilonUnit)},
                                               {"rope_base_e3", std::llround(rotary_base * kBaseUnit)},
                                               {"qkv_bias", qkv_bias ? 1 : 0},
                                               {"head_norms", head_norms ? 1 : 0},
                                               {"tied_head", tied_head ? 1 : 0}};
  if (rotary_scaling == RotaryScaling{}) return sizes;
  sizes["rope_factor_e6"] = std::llround(rotary_scaling.factor * kFactorUnit);
  sizes["rope_low_factor_e6"] = std::llround(rotary_scaling.low_frequency_factor * kFactorUnit);
  sizes["rope_high_factor_e6"] = std::llround(rotary_scaling.high_frequency_factor * kFactorUnit);
  sizes["rope_positions"] = rotary_scaling.original_positions;
  return sizes;
}

LlamaShape LlamaShape::of_sizes(const std::map<std::string, std::int64_t>& sizes) {
  const auto size = [&](const char* name) {
    const auto found = sizes.find(name);
    if (found == sizes.end()) fail("a model without the size {}", name);
    return found->second;
  };
  const auto number = [&](const char* name, double unit) { return static_cast<double>(size(name)) / unit; };
  LlamaShape shape;
  shape.layers = size("layers");
  shape.width = size("width");
  shape.heads = size("heads");
  shape.key_heads = size("key_heads");
  shape.head_size = size("head_size");
  shape.feed_forward = size("feed_forward");
  shape.sequence = size("sequence");
  shape.positions = size("positions");
  shape.vocabulary = size("vocabulary");
  shape.norm_epsilon = number("norm_epsilon_e12", kEpsilonUnit);
  shape.rotary_base = number("rope_base_e3", kBaseUnit);
  shape.qkv_bias = size("qkv_bias") != 0;
  shape.head_norms = size("head_norms") != 0;
  shape.tied_head = size("tied_head") != 0;
  if (sizes.count("rope_factor_e6") == 0) return shape;
  shape.rotary_scaling = {number("rope_factor_e6", kFactorUnit), number("rope_low_factor_e6", kFactorUnit),
                          number("rope_high_factor_e6", kFactorUnit), size("rope_positions")};
  return shape;
}

DecoderTable llama_table(const LlamaShape& shape) {
  DecoderTable table;
  table.config = {.layers = shape.layers,
                  .width = shape.width,
                  .heads = shape.heads,
                  .key_heads = shape.all_key_heads(),
                  .head_size = shape.size_of_head(),
                  .hidden = shape.feed_forward,
                  .sequence = shape.sequence,
                  .vocabulary = shape.vocabulary,
                  .norm = NormKind::rms,
                  .norm_epsilon = shape.norm_epsilon,
                  .positions = PositionKind::rotary,
                  .rotary_base = shape.rotary_base,
                  .rotary_scaling = shape.rotary_scaling,
                  .activation = MlpActivation::swiglu,
                  .normalises_heads = shape.head_norms,
                  .qkv_bias = shape.qkv_bias,
                  .output_bias = false,
                  .mlp_bias = false,
                  .tied_head = shape.tied_head};
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
  table.residual_weight = InitialValue::normal(0.02f / std::sqrt(2.0f * static_cast<float>(shape.layers)));
  return table;
}

std::vector<ParameterSpec> llama_parameters(const LlamaShape& shape, const TensorSlice& slice) {
  return decoder_parameters(llama_table(shape), slice).specs;
}

}  // namespace ddptrain
