#include <numbers>

#include "runtime/device/cpu/cpu_device.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kBlock = 256;  // elements; whole vectors, so that a value does not depend on its place
template <class T>
using Block = Eigen::Array<T, kBlock, 1>;

constexpr double kInner = 2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 2 sqrt(2 / pi)
constexpr double kCubic = 0.044715;

/// s in gelu(x) = x s: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
Block<T> gate(const Block<T>& x) {
  const auto inner = x * static_cast<T>(kInner) * (T{1} + static_cast<T>(kCubic) * x.square());
  return (T{1} + (-inner).exp()).inverse();
}

template <class T>
Block<T> gelu_of(const Block<T>& x) {
  return x * gate(x);
}

template <class T>
Block<T> gelu_slope(const Block<T>& x) {
  const Block<T> s = gate(x);
  return s + x * s * (T{1} - s) * static_cast<T>(kInner) * (T{1} + static_cast<T>(3 * kCubic) * x.square());
}

/// The block of `x` that starts at `begin`, filled up with zeros.
template <class T>
Block<T> load(const T* x, std::int64_t begin, std::int64_t count) {
  Block<T> block = Block<T>::Zero();
  std::copy_n(x + begin, count, block.data());
  return block;
}

}  // namespace

void CpuDevice::linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                            const Tensor& y) {
  linear(x, weight, bias, pre);
  gelu(pre, y);
}

void CpuDevice::gelu(const Tensor& pre, const Tensor& y) {
  expect_tensor(pre, "gelu: pre", dtype(), pre.shape);
  expect_tensor(y, "gelu: y", dtype(), pre.shape);
  const std::int64_t size = pre.size();
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    parallel_each((size + kBlock - 1) / kBlock, 4096, [&](std::int64_t block, int) {
      const std::int64_t begin = block * kBlock;
      const std::int64_t count = std::min(kBlock, size - begin);
      const Block<T> values = gelu_of<T>(load(pre.as<T>(), begin, count));
      std::copy_n(values.data(), count, y.as<T>() + begin);
    });
  });
}

void CpuDevice::linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                     const Tensor& dbias, bool accumulate) {
  linear_backward(Tensor{}, weight, dy, dpre, Tensor{}, Tensor{}, false);
  expect_tensor(pre, "linear_gelu_backward: pre", dtype(), dpre.shape);
  const std::int64_t size = pre.size();
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    parallel_each((size + kBlock - 1) / kBlock, 4096, [&](std::int64_t block, int) {
      const std::int64_t begin = block * kBlock;
      const std::int64_t count = std::min(kBlock, size - begin);
      const Block<T> slope = gelu_slope<T>(load(pre.as<T>(), begin, count));
      RowView<T>(dpre.as<T>() + begin, count) *= slope.head(count).transpose();
    });
  });
  if (dbias) sum_columns(dpre, dbias, accumulate);
}

}  // namespace ddptrain
