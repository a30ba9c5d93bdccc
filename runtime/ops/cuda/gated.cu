#include "runtime/ops/gated.h"

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/fp8.h"
#include "runtime/ops/cuda/swiglu.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

/// V neighbouring elements of a row of y, whose rows have `packs` such packs. A thread takes one.
template <int V>
struct PackOfRow {
  std::size_t y, gate, up;  ///< Where it lies in y, and in a matrix of gates and what they gate.

  __device__ PackOfRow(std::uint32_t index, std::uint32_t packs) {
    const std::size_t row = index / packs;
    const std::size_t columns = static_cast<std::size_t>(packs) * V;
    y = static_cast<std::size_t>(index) * V;
    gate = y + row * columns;
    up = gate + columns;
  }
};

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const T* pre, std::uint32_t packs, std::uint32_t count, T* y) {
  follow_predecessor();
  const std::uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const PackOfRow<V> at(index, packs);
  float gate[V], up[V], value[V];
  load<V>(pre + at.gate, gate);
  load<V>(pre + at.up, up);
#pragma unroll
  for (int i = 0; i < V; ++i) value[i] = swiglu_of<T>(gate[i], up[i]);
  store<V>(value, y + at.y);
}

/// y may be null.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    swiglu_backward_kernel(const T* pre, const T* dy, std::uint32_t packs, std::uint32_t count, T* dpre, T* y) {
  const std::uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= count) return;
  const PackOfRow<V> at(index, packs);
  float gate[V], up[V], gradient[V], dgate[V], dup[V];
  load<V>(pre + at.gate, gate);
  load<V>(pre + at.up, up);
  load<V>(dy + at.y, gradient);
#pragma unroll
  for (int i = 0; i < V; ++i) {
    dgate[i] = swiglu_gate_gradient<T>(gate[i], up[i], gradient[i]);
    dup[i] = swiglu_up_gradient<T>(gate[i], gradient[i]);
  }
  store<V>(dgate, dpre + at.gate);
  store<V>(dup, dpre + at.up);
  if (y == nullptr) return;
  float value[V];
#pragma unroll
  for (int i = 0; i < V; ++i) value[i] = swiglu_of<T>(gate[i], up[i]);
  store<V>(value, y + at.y);
}

class CudaGated final : public GatedOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void swiglu(const Tensor& pre, const Tensor& y) override {
    const MatrixShape s = check_swiglu("swiglu", pre, y, {}, dtype());
    if (y.size() == 0) return;
    if (is_fp8(y.dtype)) return quantize_swiglu(pre.data, fp8_output(y, stream()), stream());
    for_packs(s, {pre, y},
              [&]<class T, int V>(T, std::integral_constant<int, V>, std::uint32_t packs, std::uint32_t count) {
                launch_rows(s.rows, swiglu_kernel<T, V>, ceil_div(count, kThreads), kThreads, 0, stream(), pre.as<T>(),
                            packs, count, y.as<T>());
              });
  }

  void swiglu_backward(const Tensor& pre, const Tensor& dy, const Tensor& dpre, const Tensor& y) override {
    const MatrixShape s = check_swiglu("swiglu_backward", pre, dy, dpre, dtype());
    if (dy.size() == 0) return;
    if (is_fp8(dpre.dtype)) {
      if (y) swiglu(pre, y);
      return quantize_swiglu_gradient(pre.data, dy.data, fp8_output(dpre, stream()), stream());
    }
    if (y) check_swiglu("swiglu_backward", pre, y, {}, dtype());
    require(!is_fp8(y.dtype), "swiglu_backward: y in FP8, and dpre is not");
    for_packs(s, {pre, dy, dpre, y},
              [&]<class T, int V>(T, std::integral_constant<int, V>, std::uint32_t packs, std::uint32_t count) {
                launch_kernel(swiglu_backward_kernel<T, V>, ceil_div(count, kThreads), kThreads, 0, stream(),
                              pre.as<T>(), dy.as<T>(), packs, count, dpre.as<T>(), y.as<T>());
              });
  }

 private:
  /// work(T{}, std::integral_constant<int, elements of a pack>{}, packs of a row, packs of all rows)
  template <class Work>
  void for_packs(const MatrixShape& shape, std::initializer_list<Tensor> tensors, Work&& work) {
    require(shape.rows * shape.columns <= std::int64_t{1} << 31, "swiglu: more than 2^31 elements");
    with_element(dtype(), [&]<class T>(T element) {
      constexpr int kWide = 16 / sizeof(T);
      bool wide = shape.columns % kWide == 0;
      for (const Tensor& tensor : tensors) wide = wide && is_aligned(tensor.data, 16);
      const auto start = [&]<int V>(std::integral_constant<int, V> width) {
        const auto packs = static_cast<std::uint32_t>(shape.columns / V);
        work(element, width, packs, static_cast<std::uint32_t>(shape.rows) * packs);
      };
      wide ? start(std::integral_constant<int, kWide>{}) : start(std::integral_constant<int, 1>{});
    });
  }
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::GatedOps> ddptrain::GatedOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaGated>(device);
}
