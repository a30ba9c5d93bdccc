#include "models/layers/parameters.h"

namespace ddptrain {

void split(ParameterSpec& spec, std::size_t dimension, std::int64_t blocks, const TensorSlice& slice) {
  if (slice.count == 1) return;
  const auto inner = spec.shape.begin() + static_cast<std::ptrdiff_t>(dimension);
  const std::int64_t block = element_count(Shape{inner, spec.shape.end()}) / blocks;
  const std::int64_t run = block / slice.count;
  spec.split = Split{spec.shape, slice.index * run, run, block};
  *inner /= slice.count;
}

void add_linear(const std::string& name, const Shape& shape, bool bias, const InitialValue& weight,
                std::vector<ParameterSpec>& specs) {
  specs.push_back({name + ".weight", shape, weight, true});
  if (bias) specs.push_back({name + ".bias", {shape.at(0)}, InitialValue::constant(0.0f), false});
}

void add_norm(const std::string& name, NormKind kind, std::int64_t width, std::vector<ParameterSpec>& specs) {
  specs.push_back({name + ".weight", {width}, InitialValue::constant(1.0f), false});
  if (kind == NormKind::layer) specs.push_back({name + ".bias", {width}, InitialValue::constant(0.0f), false});
}

void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const TensorSlice& slice,
                  const InitialValue& weight, const InitialValue& add, std::vector<ParameterSpec>& specs) {
  const std::size_t out = specs.size();
  add_linear(names.out, shape.out, shape.out_bias, add, specs);
  specs[out].matrix_rows = {shape.out.at(0)};
  split(specs[out], 1, 1, slice);
  const std::size_t in = specs.size();
  add_linear(names.in, shape.in, shape.in_bias, weight, specs);
  specs[in].matrix_rows = shape.in_matrices;
  for (std::size_t i = in; i < specs.size(); ++i) split(specs[i], 0, shape.blocks, slice);
  add_norm(names.norm, shape.norm, shape.in.at(1), specs);
}

}  // namespace ddptrain
