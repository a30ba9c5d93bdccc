#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/train/model.h"

/// What parameters layers have: names, shapes and initial values, in the order in which the backward pass completes
/// their gradients.

namespace ddptrain {

/// Weight of this shape [outputs, inputs], bias [outputs], which starts at zero.
void add_linear(const std::string& name, const Shape& shape, const InitialValue& weight,
                std::vector<ParameterSpec>& specs);
/// Weight [width], which starts at one, bias [width], which starts at zero.
void add_norm(const std::string& name, std::int64_t width, std::vector<ParameterSpec>& specs);

/// Shapes of the weights of a Sublayer's linear layers.
struct SublayerShape {
  Shape in, out;
};
struct SublayerNames {
  std::string norm, in, out;
};
/// The linear layer `out`, the linear layer `in`, the norm. `add`: initial value of the weights whose outputs are added
/// to the residual stream.
void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const InitialValue& weight,
                  const InitialValue& add, std::vector<ParameterSpec>& specs);

}  // namespace ddptrain
