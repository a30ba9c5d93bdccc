#include "models/layers/parameters.h"

namespace ddptrain {

void split(ParameterSpec& spec, std::size_t dimension, std::int64_t blocks, const LayerPart& part) {
  if (part.count == 1) return;
  const auto inner = spec.shape.begin() + static_cast<std::ptrdiff_t>(dimension);
  const std::int64_t block = element_count(Shape{inner, spec.shape.end()}) / blocks;
  const std::int64_t run = block / part.count;
  spec.split = Split{spec.shape, part.index * run, run, block};
  *inner /= part.count;
}

void add_linear(const std::string& name, const Shape& shape, const InitialValue& weight,
                std::vector<ParameterSpec>& specs) {
  specs.push_back({name + ".weight", shape, weight, true});
  specs.push_back({name + ".bias", {shape.at(0)}, InitialValue::constant(0.0f), false});
}

void add_norm(const std::string& name, std::int64_t width, std::vector<ParameterSpec>& specs) {
  specs.push_back({name + ".weight", {width}, InitialValue::constant(1.0f), false});
  specs.push_back({name + ".bias", {width}, InitialValue::constant(0.0f), false});
}

void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const LayerPart& part,
                  const InitialValue& weight, const InitialValue& add, std::vector<ParameterSpec>& specs) {
  const std::size_t first = specs.size();
  add_linear(names.out, shape.out, add, specs);
  add_linear(names.in, shape.in, weight, specs);
  split(specs[first], 1, 1, part);
  split(specs[first + 2], 0, shape.blocks, part);
  split(specs[first + 3], 0, shape.blocks, part);
  add_norm(names.norm, shape.in.at(1), specs);
}

}  // namespace ddptrain
