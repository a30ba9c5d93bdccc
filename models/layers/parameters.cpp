#include "models/layers/parameters.h"

namespace ddptrain {

void add_linear(const std::string& name, const Shape& shape, const InitialValue& weight,
                std::vector<ParameterSpec>& specs) {
  specs.push_back({name + ".weight", shape, weight, true});
  specs.push_back({name + ".bias", {shape.at(0)}, InitialValue::constant(0.0f), false});
}

void add_norm(const std::string& name, std::int64_t width, std::vector<ParameterSpec>& specs) {
  specs.push_back({name + ".weight", {width}, InitialValue::constant(1.0f), false});
  specs.push_back({name + ".bias", {width}, InitialValue::constant(0.0f), false});
}

void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const InitialValue& weight,
                  const InitialValue& add, std::vector<ParameterSpec>& specs) {
  add_linear(names.out, shape.out, add, specs);
  add_linear(names.in, shape.in, weight, specs);
  add_norm(names.norm, shape.in.at(1), specs);
}

}  // namespace ddptrain
