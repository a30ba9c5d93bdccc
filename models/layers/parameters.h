#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/train/model.h"

/// The parameters of layers: names, shapes and initial values, in the order in which the backward pass completes their
/// gradients.

namespace ddptrain {

/// One rank's slice of layers that `count` ranks split into equal slices (tensor parallelism).
struct TensorSlice {
  std::int64_t count = 1;
  std::int64_t index = 0;
};

/// Reduces a parameter to a slice along `dimension`. The dimension has `blocks` equal blocks, each of which is split.
void split(ParameterSpec& spec, std::size_t dimension, std::int64_t blocks, const TensorSlice& slice);

enum class NormKind : std::uint8_t {
  layer,  ///< Layer norm, with a weight and a bias.
  rms,    ///< RMS norm, with a weight.
};

/// Adds a weight of this shape [outputs, inputs] and, with `bias`, a bias [outputs] of zeros.
void add_linear(const std::string& name, const Shape& shape, bool bias, const InitialValue& weight,
                std::vector<ParameterSpec>& specs);
/// Adds a weight [width] of ones and, for a layer norm, a bias [width] of zeros.
void add_norm(const std::string& name, NormKind kind, std::int64_t width, std::vector<ParameterSpec>& specs);

/// The parameters of a Sublayer. The rows of the weight of `in` have `blocks` blocks, each of which is split.
struct SublayerShape {
  Shape in;   ///< Of the weight.
  Shape out;  ///< Of the weight.
  std::int64_t blocks = 1;
  std::vector<std::int64_t> in_matrices = {};  ///< See ParameterSpec::matrix_rows.
  bool in_bias = true;
  bool out_bias = true;
  NormKind norm = NormKind::layer;

  /// The shapes of one of `slices` slices: `in` is split by its outputs, `out` by its inputs.
  SublayerShape slice(std::int64_t slices) const {
    SublayerShape shape = *this;
    shape.in.at(0) /= slices;
    shape.out.at(1) /= slices;
    return shape;
  }
};
struct SublayerNames {
  std::string norm;
  std::string in;
  std::string out;
};
/// Adds the linear layer `out`, the linear layer `in` and the norm. `add` is the initial value of the weight of `out`,
/// whose output is added to the residual stream. `shape` is the shape of the whole layers.
void add_sublayer(const SublayerNames& names, const SublayerShape& shape, const TensorSlice& slice,
                  const InitialValue& weight, const InitialValue& add, std::vector<ParameterSpec>& specs);

}  // namespace ddptrain
