#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/train/model.h"

/// What parameters layers have: names, shapes and initial values, in the order in which the backward pass completes
/// their gradients.

namespace ddptrain {

/// One of the equal parts into which ranks split layers.
struct LayerPart {
  std::int64_t count = 1;
  std::int64_t index = 0;
};

/// Leaves of a parameter its part along this dimension, of each of the `blocks` that the dimension is made of.
void split(ParameterSpec& spec, std::size_t dimension, std::int64_t blocks, const LayerPart& part);

/// Weight of this shape [outputs, inputs], bias [outputs], which starts at zero.
void add_linear(const std::string& name, const Shape& shape, const InitialValue& weight,
                std::vector<ParameterSpec>& specs);
/// Weight [width], which starts at one, bias [width], which starts at zero.
void add_norm(const std::string& name, std::int64_t width, std::vector<ParameterSpec>& specs);

/// Shapes of the weights of a Sublayer's linear layers. `blocks`: of the rows of `in`, each of which is split by
/// itself.
struct SublayerShape {
  Shape in, out;
  std::int64_t blocks = 1;

  /// Of one of so many parts: `in` is split by its outputs, `out` by its inputs.
  SublayerShape part(std::int64_t parts) const {
    return {{in.at(0) / parts, in.at(1)}, {out.at(0), out.at(1) / parts}, blocks};
  }
};
struct SublayerNames {
  std::string norm, in, out;
};
/// The linear layer `out`, the linear layer `in`, the norm. `add`: initial value of the weights whose outputs are added
/// to the residual stream. `shape`: of all parts.
void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const LayerPart& part,
                  const InitialValue& weight, const InitialValue& add, std::vector<ParameterSpec>& specs);

}  // namespace ddptrain
