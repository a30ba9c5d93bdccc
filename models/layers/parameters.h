#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/train/model.h"

/// The parameters of layers: names, shapes and initial values, in the order in which the backward pass completes their
/// gradients.

namespace ddptrain {

/// One of `count` equal parts of a layer.
struct LayerPart {
  std::int64_t count = 1;
  std::int64_t index = 0;
};

/// Reduces a parameter to its part along `dimension`. The dimension has `blocks` equal blocks, each of which is split.
void split(ParameterSpec& spec, std::size_t dimension, std::int64_t blocks, const LayerPart& part);

/// Adds a weight of this shape [outputs, inputs] and a bias [outputs] of zeros.
void add_linear(const std::string& name, const Shape& shape, const InitialValue& weight,
                std::vector<ParameterSpec>& specs);
/// Adds a weight [width] of ones and a bias [width] of zeros.
void add_norm(const std::string& name, std::int64_t width, std::vector<ParameterSpec>& specs);

/// The shapes of the weights of a Sublayer's linear layers. The rows of `in` have `blocks` blocks, each of which is
/// split.
struct SublayerShape {
  Shape in, out;
  std::int64_t blocks = 1;

  /// The shapes of one of `parts` parts: `in` is split by its outputs, `out` by its inputs.
  SublayerShape part(std::int64_t parts) const {
    return {{in.at(0) / parts, in.at(1)}, {out.at(0), out.at(1) / parts}, blocks};
  }
};
struct SublayerNames {
  std::string norm, in, out;
};
/// Adds the linear layer `out`, the linear layer `in` and the norm. `add` is the initial value of the weight of `out`,
/// whose output is added to the residual stream. `shape` is the shape of the whole layers.
void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const LayerPart& part,
                  const InitialValue& weight, const InitialValue& add, std::vector<ParameterSpec>& specs);

}  // namespace ddptrain
