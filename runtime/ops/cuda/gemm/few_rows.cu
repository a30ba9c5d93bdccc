#include "runtime/ops/cuda/gemm/few_rows.h"

#include <algorithm>
#include <cstddef>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/reduce.cuh"

// A warp computes one column of y: it reads a row of the weight once, in pieces of 512 bytes, and all rows of x, which
// are few and stay near. While the operation before still runs, warps fetch the beginning of their rows of the weight
// into the L2 cache. This is right even if that operation writes the weight: writes go to the same cache.

namespace ddptrain::cuda {

namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kPack = 8;   // elements that a lane reads at a time
constexpr int kAhead = 4;  // packs that a lane has under way
constexpr int kMostRows = 8;
constexpr std::size_t kPrefetched = 16u << 20;  // bytes of the weight that are fetched early
constexpr std::uint32_t kLine = 128;            // bytes

__device__ __forceinline__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// sum + the products of eight elements.
__device__ __forceinline__ float add_products(const uint4& a, const uint4& b, float sum) {
  const std::uint32_t left[] = {a.x, a.y, a.z, a.w}, right[] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack_bf16(left[i]), y = unpack_bf16(right[i]);
    sum += x.x * y.x;
    sum += x.y * y.y;
  }
  return sum;
}

struct FewRows {
  std::uint32_t rows;
  std::uint32_t in;
  std::uint32_t out;
  std::uint32_t prefetched;  ///< Bytes of each row of the weight.
};

/// kRows: at least a.rows.
template <int kRows>
__global__ void __launch_bounds__(kThreads)
    few_rows_kernel(const FewRows a, const __nv_bfloat16* x, const __nv_bfloat16* weight, const __nv_bfloat16* bias,
                    __nv_bfloat16* y) {
  const std::uint32_t column = blockIdx.x * kWarps + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (column >= a.out) return;
  const __nv_bfloat16* const row = weight + static_cast<std::size_t>(column) * a.in;
  for (std::uint32_t byte = lane * kLine; byte < a.prefetched; byte += 32 * kLine) {
    prefetch(reinterpret_cast<const char*>(row) + byte);
  }
  let_successor_start();
  wait_for_predecessor();
  const std::uint32_t packs = a.in / kPack;
  const auto* const weights = reinterpret_cast<const uint4*>(row);
  const auto* const inputs = reinterpret_cast<const uint4*>(x);
  float sum[kRows] = {};
  for (std::uint32_t first = lane; first < packs; first += 32 * kAhead) {
    uint4 fetched[kAhead];
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t pack = first + 32 * k;
      fetched[k] = pack < packs ? weights[pack] : uint4{};
    }
#pragma unroll
    for (std::uint32_t k = 0; k < kAhead; ++k) {
      const std::uint32_t pack = min(first + 32 * k, packs - 1);
#pragma unroll
      for (std::uint32_t r = 0; r < kRows; ++r) {
        sum[r] = add_products(fetched[k], inputs[min(r, a.rows - 1) * packs + pack], sum[r]);
      }
    }
  }
#pragma unroll
  for (std::uint32_t r = 0; r < kRows; ++r) {
    const float total = warp_sum(sum[r]) + (bias != nullptr ? to_float(bias[column]) : 0.0f);
    if (lane == 0 && r < a.rows) y[static_cast<std::size_t>(r) * a.out + column] = from_float<__nv_bfloat16>(total);
  }
}

}  // namespace

bool has_few_rows(const Tensor& x, const Tensor& weight) {
  return x.dtype == DType::bf16 && x.dim(0) >= 1 && x.dim(0) <= kMostRows && x.dim(1) % kPack == 0 &&
         is_aligned(x.data, sizeof(uint4)) && is_aligned(weight.data, sizeof(uint4));
}

void linear_of_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                        cudaStream_t stream) {
  const std::size_t row_bytes = static_cast<std::size_t>(weight.dim(1)) * sizeof(__nv_bfloat16);
  const std::size_t share = kPrefetched / static_cast<std::size_t>(weight.dim(0)) / kLine * kLine;
  const FewRows a{.rows = static_cast<std::uint32_t>(x.dim(0)),
                  .in = static_cast<std::uint32_t>(x.dim(1)),
                  .out = static_cast<std::uint32_t>(weight.dim(0)),
                  .prefetched = static_cast<std::uint32_t>(std::min(row_bytes, share))};
  const auto kernel = a.rows == 1   ? few_rows_kernel<1>
                      : a.rows == 2 ? few_rows_kernel<2>
                      : a.rows <= 4 ? few_rows_kernel<4>
                                    : few_rows_kernel<kMostRows>;
  launch_early(kernel, dim3(ceil_div(a.out, kWarps)), kThreads, 0, stream, a, x.as<__nv_bfloat16>(),
               weight.as<__nv_bfloat16>(), bias.as<__nv_bfloat16>(), y.as<__nv_bfloat16>());
}

}  // namespace ddptrain::cuda
