#include "runtime/ops/optimizers/orthogonal.h"

#include <algorithm>
#include <utility>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/matmul.h"
#include "runtime/ops/reduction.h"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kMostBlocks = 2048;

__device__ __forceinline__ std::int64_t first_element() {
  return static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
}
__device__ __forceinline__ std::int64_t element_stride() { return static_cast<std::int64_t>(gridDim.x) * kThreads; }

/// x = the matrix in these rows of `values`.
template <class G, class T>
__global__ void __launch_bounds__(kThreads)
    load_kernel(const G* values, const RowBlocks rows, std::int64_t columns, std::int64_t count, T* x) {
  for (std::int64_t i = first_element(); i < count; i += element_stride()) {
    x[i] = from_float<T>(to_float(values[rows.at(i / columns) * columns + i % columns]));
  }
}

/// The matrix in these rows of `values` = scale * x.
template <class T, class G>
__global__ void __launch_bounds__(kThreads)
    store_kernel(const T* x, float scale, const RowBlocks rows, std::int64_t columns, std::int64_t count, G* values) {
  for (std::int64_t i = first_element(); i < count; i += element_stride()) {
    values[rows.at(i / columns) * columns + i % columns] = from_float<G>(scale * to_float(x[i]));
  }
}

/// x /= its norm, whose square is given.
template <class T>
__global__ void __launch_bounds__(kThreads) normalise_kernel(T* x, std::int64_t count, const float* squared_norm) {
  const float scale = 1.0f / (sqrtf(*squared_norm) + NewtonSchulz::kEpsilon);
  for (std::int64_t i = first_element(); i < count; i += element_stride()) x[i] = from_float<T>(scale * to_float(x[i]));
}

/// square = a + b gram + c square.
template <class T>
__global__ void __launch_bounds__(kThreads) polynomial_kernel(const T* gram, std::int64_t side, T* square) {
  for (std::int64_t i = first_element(); i < side * side; i += element_stride()) {
    const float unit = i / side == i % side ? NewtonSchulz::kA : 0.0f;
    square[i] = from_float<T>(unit + NewtonSchulz::kB * to_float(gram[i]) + NewtonSchulz::kC * to_float(square[i]));
  }
}

std::uint32_t blocks_for(std::int64_t count) { return std::min(ceil_div(count, 4 * kThreads), kMostBlocks); }

class CudaOrthogonal final : public OrthogonalOps, CudaOps {
 public:
  explicit CudaOrthogonal(Device& device)
      : CudaOps(device),
        matmul_(device.get<MatmulPlans>()),
        reduction_(device.get<ReductionOps>()),
        squared_norm_(device.allocate(sizeof(float))) {}

  void orthogonalise(const Tensor& values, const RowBlocks& rows, float scale, const Tensor& workspace) override {
    OrthogonalWorkspace memory = check_orthogonalise(values, rows, workspace, dtype());
    load(values, rows, memory.x);
    for (int i = 0; i < NewtonSchulz::kIterations; ++i) {
      iterate(memory);
      std::swap(memory.x, memory.next_x);
    }
    store(memory.x, scale, values, rows);
  }

 private:
  void iterate(const OrthogonalWorkspace& memory) {
    const std::int64_t rows = memory.x.dim(0);
    const std::int64_t columns = memory.x.dim(1);
    const std::int64_t side = memory.gram.dim(0);
    const bool is_wide = rows <= columns;
    multiply({side, side, std::max(rows, columns), !is_wide, is_wide}, memory.x, memory.x, memory.gram);
    multiply({side, side, side}, memory.gram, memory.gram, memory.square);
    with_element(dtype(), [&]<class T>(T) {
      launch_kernel(polynomial_kernel<T>, blocks_for(side * side), kThreads, 0, stream(), memory.gram.as<T>(), side,
                    memory.square.as<T>());
    });
    const Tensor& left = is_wide ? memory.square : memory.x;
    const Tensor& right = is_wide ? memory.x : memory.square;
    multiply({rows, columns, side}, left, right, memory.next_x);
  }

  void multiply(Gemm gemm, const Tensor& left, const Tensor& right, const Tensor& to) {
    gemm.in = dtype();
    gemm.out = dtype();
    matmul_.gemm(gemm, {.a = left.data, .b = right.data, .c = to.data}, stream());
  }

  /// x = the matrix, divided by its norm.
  void load(const Tensor& values, const RowBlocks& rows, const Tensor& x) {
    auto* const squared_norm = static_cast<float*>(squared_norm_.data());
    const std::uint32_t blocks = blocks_for(x.size());
    with_element(dtype(), [&]<class T>(T) {
      with_element(values.dtype, [&]<class G>(G) {
        launch_kernel(load_kernel<G, T>, blocks, kThreads, 0, stream(), values.as<G>(), rows, x.dim(1), x.size(),
                      x.as<T>());
      });
      reduction_.sums_of_squares({{x, squared_norm}});
      launch_kernel(normalise_kernel<T>, blocks, kThreads, 0, stream(), x.as<T>(), x.size(), squared_norm);
    });
  }

  void store(const Tensor& x, float scale, const Tensor& values, const RowBlocks& rows) {
    with_element(dtype(), [&]<class T>(T) {
      with_element(values.dtype, [&]<class G>(G) {
        launch_kernel(store_kernel<T, G>, blocks_for(x.size()), kThreads, 0, stream(), x.as<T>(), scale, rows, x.dim(1),
                      x.size(), values.as<G>());
      });
    });
  }

  MatmulPlans& matmul_;
  ReductionOps& reduction_;
  Buffer squared_norm_;
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::OrthogonalOps> ddptrain::OrthogonalOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaOrthogonal>(device);
}
