#pragma once

#include <cstdint>
#include <type_traits>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/norm.h"

/// Code that forward and backward of layer norm share. A warp takes one row. If rows are made of packs of eight
/// elements and fit the registers of a warp, it reads them once; kernels named any_width do without and read them
/// again.

namespace ddptrain::cuda::norm {

inline constexpr int kWarps = 8;  // of a block
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kPack = 8;
inline constexpr int kMaxPacks = 8;  // of a lane
inline constexpr int kMaxWidth = 32 * kPack * kMaxPacks;

/// Element that pack i of this lane starts with.
__device__ __forceinline__ std::uint32_t pack_start(int i) { return kPack * (32 * i + threadIdx.x % 32); }
__device__ __forceinline__ std::uint32_t warp_row() { return blockIdx.x * kWarps + threadIdx.x / 32; }

/// Whether rows of this width at these addresses can be taken in packs.
template <class... Pointers>
bool in_packs(std::int64_t width, Pointers... pointers) {
  return width % kPack == 0 && width <= kMaxWidth && (... && is_aligned(pointers, 16));
}

/// work(std::integral_constant<int, packs per lane>{})
template <class Work>
void with_packs(std::int64_t width, Work&& work) {
  switch (ceil_div(width, 32 * kPack)) {
    case 1:
      return work(std::integral_constant<int, 1>{});
    case 2:
      return work(std::integral_constant<int, 2>{});
    case 3:
      return work(std::integral_constant<int, 3>{});
    case 4:
      return work(std::integral_constant<int, 4>{});
    case 5:
      return work(std::integral_constant<int, 5>{});
    case 6:
    case 7:
      return work(std::integral_constant<int, 7>{});
    default:
      return work(std::integral_constant<int, kMaxPacks>{});
  }
}

}  // namespace ddptrain::cuda::norm

namespace ddptrain {

class CudaNorm final : public NormOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                  const Tensor& statistics) override;
  void add_layer_norm(const Tensor& residual, const Tensor& branch, const Dropout& dropout, const Tensor& weight,
                      const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                      const Tensor& statistics) override;
  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Tensor& dy,
                           const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor& dx_sums, bool accumulate) override;

 private:
  /// x + dropout(branch) becomes `sum` before it is normalised if `branch` has data.
  void forward(const Tensor& x, const Tensor& branch, const Dropout& dropout, const Tensor& weight, const Tensor& bias,
               float epsilon, const Tensor& sum, const Tensor& y, const Tensor& statistics);
};

}  // namespace ddptrain
