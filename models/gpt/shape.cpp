#include "models/gpt/shape.h"

#include "models/gpt/gpt_block.h"
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

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape) {
  const InitialValue normal = InitialValue::normal(0.02f);
  std::vector<ParameterSpec> specs = {{"ln_f.weight", {shape.width}, InitialValue::constant(1.0f), false},
                                      {"ln_f.bias", {shape.width}, InitialValue::constant(0.0f), false}};
  for (std::int64_t layer = shape.layers - 1; layer > 0; --layer) GptBlock::append_parameters(shape, layer, specs);
  specs.push_back({"wte.weight", {shape.vocabulary, shape.width}, normal, true, shape.padded_vocabulary()});
  specs.push_back({"wpe.weight", {shape.sequence, shape.width}, normal, true});
  GptBlock::append_parameters(shape, 0, specs);
  return specs;
}

}  // namespace ddptrain
