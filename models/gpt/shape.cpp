#include "models/gpt/shape.h"

#include <fmt/format.h>

#include <cmath>

#include "models/layers/attention.h"
#include "models/layers/feed_forward.h"
#include "models/layers/parameters.h"
#include "runtime/core/error.h"

namespace ddptrain {

void check_shape(const GptShape& shape, const GptShapeNames& names) {
  const auto within = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) usage_error("{}{} {}: give 1 to {}", names.where, name, value, most);
  };
  within(names.layers, shape.layers, 1000);
  within(names.width, shape.width, 65536);
  within(names.heads, shape.heads, 65536);
  within(names.feed_forward, shape.feed_forward, 1 << 20);
  within(names.sequence, shape.sequence, 1 << 20);
  within(names.vocabulary, shape.vocabulary, 65536);  // tokens are numbers of two bytes
  if (shape.width % shape.heads != 0) {
    usage_error("{}{} {}: give a number that divides {} {}", names.where, names.heads, shape.heads, names.width,
                shape.width);
  }
}

namespace {

void add_block(const GptShape& shape, std::int64_t layer, std::vector<ParameterSpec>& specs) {
  const InitialValue normal = InitialValue::normal(0.02f);
  const InitialValue add = InitialValue::normal(0.02f / std::sqrt(2.0f * static_cast<float>(shape.layers)));
  const auto name = [layer](const char* part) { return fmt::format("h.{}.{}", layer, part); };
  add_sublayer({name("ln_2"), name("mlp.c_fc"), name("mlp.c_proj")},
               FeedForward::shape(shape.width, shape.feed_forward), normal, add, specs);
  add_sublayer({name("ln_1"), name("attn.c_attn"), name("attn.c_proj")}, Attention::shape(shape.width), normal, add,
               specs);
}

}  // namespace

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape) {
  const InitialValue normal = InitialValue::normal(0.02f);
  std::vector<ParameterSpec> specs;
  add_norm("ln_f", shape.width, specs);
  for (std::int64_t layer = shape.layers - 1; layer > 0; --layer) add_block(shape, layer, specs);
  specs.push_back({"wte.weight", {shape.vocabulary, shape.width}, normal, true, shape.padded_vocabulary()});
  specs.push_back({"wpe.weight", {shape.sequence, shape.width}, normal, true});
  add_block(shape, 0, specs);
  return specs;
}

}  // namespace ddptrain
