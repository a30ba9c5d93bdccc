#include "models/cnn/pytorch_layout.h"

#include <cstddef>
#include <utility>

namespace ddptrain {
namespace {

constexpr std::int64_t kFilterSide = 3;

/// A parameter in memory as [outputs, pixels, channels]; no outputs: both layouts are the same.
struct Dims {
  std::int64_t outputs = 0;
  std::int64_t pixels = 1;
  std::int64_t channels = 1;
};

Dims dims_of(const CnnShape& shape, const std::string& name) {
  if (name == "conv1.weight") return {shape.conv1, kFilterSide * kFilterSide, 1};
  if (name == "conv2.weight") return {shape.conv2, kFilterSide * kFilterSide, shape.conv1};
  if (name == "fc1.weight") return {shape.hidden, shape.pooled_height() * shape.pooled_width(), shape.conv2};
  return {};
}

}  // namespace

HostTensor to_pytorch(const CnnShape& shape, const std::string& name, HostTensor tensor) {
  const Dims d = dims_of(shape, name);
  if (d.outputs == 0) return tensor;
  tensor.values = transposed(tensor.values, d.outputs, d.pixels, d.channels);
  if (tensor.shape.size() == 4) tensor.shape = {d.outputs, d.channels, kFilterSide, kFilterSide};
  return tensor;
}

std::vector<float> from_pytorch(const CnnShape& shape, const std::string& name, std::vector<float> values) {
  const Dims d = dims_of(shape, name);
  return d.outputs == 0 ? values : transposed(values, d.outputs, d.channels, d.pixels);
}

}  // namespace ddptrain
