#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/norm.h"
#include "runtime/ops/reduction.h"
#include "runtime/ops/rms_norm.h"

/// Code that forward and backward of layer norm and RMS norm share. One warp or a few take a row. If rows are made of
/// packs of eight elements and fit the registers of these warps, they read a row once; kernels named any_width do
/// without and read it again.

namespace ddptrain::cuda::norm {

enum class Kind : std::uint8_t { layer, rms };

inline constexpr int kWarps = 8;  // of a block
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kPack = 8;

/// Where a lane stands in a row that kGroup warps share.
template <int kGroup>
struct Place {
  std::uint32_t lane = threadIdx.x % 32;
  std::uint32_t member = threadIdx.x / 32 % kGroup;

  /// Element that a pack of this lane starts with.
  __device__ std::uint32_t column(int pack) const { return kPack * (32 * (kGroup * pack + member) + lane); }
};
/// The row of a thread whose warp has it alone.
__device__ __forceinline__ std::uint32_t warp_row() { return blockIdx.x * kWarps + threadIdx.x / 32; }

/// Whether rows of this width at these addresses can be taken in packs.
template <class... Pointers>
bool in_packs(std::int64_t width, std::int64_t most, Pointers... pointers) {
  return width % kPack == 0 && width <= most && (... && is_aligned(pointers, 16));
}

/// Mean and 1 / deviation of a row, 0 and 1 / root mean square for an RMS norm: what `statistics` has of it.
template <Kind kKind>
__device__ __forceinline__ float2 statistics_of(const float* statistics, std::uint32_t row) {
  if constexpr (kKind == Kind::rms) return make_float2(0.0f, statistics[row]);
  return reinterpret_cast<const float2*>(statistics)[row];
}
template <Kind kKind>
__device__ __forceinline__ void put_statistics(float mean, float inverse, float* statistics, std::uint32_t row) {
  if constexpr (kKind == Kind::rms) {
    statistics[row] = inverse;
  } else {
    reinterpret_cast<float2*>(statistics)[row] = make_float2(mean, inverse);
  }
}

/// The terms of a sum behind the first.
template <class T>
struct Others {
  static constexpr std::size_t kMost = 7;

  const T* term[kMost] = {};
  int count = 0;

  /// Adds element `at` and those behind it to a pack, and rounds as if the sum had been stored.
  __device__ __forceinline__ void add(std::size_t at, float (&value)[kPack]) const {
    for (int i = 0; i < count; ++i) {
      float other[kPack];
      load<kPack>(term[i] + at, other);
#pragma unroll
      for (int k = 0; k < kPack; ++k) value[k] += other[k];
    }
    if (count == 0) return;
#pragma unroll
    for (float& v : value) v = to_float(from_float<T>(v));
  }
};

/// Waits for the warps that share this thread's row.
template <int kGroup>
__device__ __forceinline__ void meet_group() {
  asm volatile("bar.sync %0, %1;" ::"r"(threadIdx.x / 32 / kGroup + 1), "n"(32 * kGroup) : "memory");
}

}  // namespace ddptrain::cuda::norm

namespace ddptrain {

/// Both norms. What one has and the other has not is without data: `bias` and `dbias` for an RMS norm.
class CudaNorms : protected CudaOps {
 public:
  using CudaOps::CudaOps;

 protected:
  /// x + dropout(branch) becomes `sum` before it is normalised if `branch` has data.
  template <cuda::norm::Kind kKind>
  void forward(const Tensor& x, const Terms& branch, const Dropout& dropout, const Tensor& weight, const Tensor& bias,
               float epsilon, const Tensor& sum, const Tensor& y, const Tensor& statistics);
  /// The terms behind the first, for a kernel that adds them. Unless it can, they are added to the first.
  template <class T>
  cuda::norm::Others<T> others(const Terms& terms, bool kernel_adds) {
    using Others = cuda::norm::Others<T>;
    const auto is_pack = [](const Tensor& term) { return cuda::is_aligned(term.data, 16); };
    kernel_adds = kernel_adds && terms.others().size() <= Others::kMost && std::ranges::all_of(terms.others(), is_pack);
    Others others;
    if (!kernel_adds) {
      device_.get<ReductionOps>().add_up(terms, device_.compute_stream());
    } else {
      for (const Tensor& term : terms.others()) others.term[others.count++] = term.as<T>();
    }
    return others;
  }
  template <cuda::norm::Kind kKind>
  void backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                const Tensor& dx_sums, bool accumulate);
};

class CudaNorm final : public NormOps, CudaNorms {
 public:
  using CudaNorms::CudaNorms;

  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                  const Tensor& statistics) override;
  void add_layer_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                      const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                      const Tensor& statistics) override;
  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                           const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor& dx_sums, bool accumulate) override;
};

class CudaRmsNorm final : public RmsNormOps, CudaNorms {
 public:
  using CudaNorms::CudaNorms;

  void rms_norm(const Tensor& x, const Tensor& weight, float epsilon, const Tensor& y,
                const Tensor& statistics) override;
  void add_rms_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                    float epsilon, const Tensor& sum, const Tensor& y, const Tensor& statistics) override;
  void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                         const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dx_sums,
                         bool accumulate) override;
};

}  // namespace ddptrain
