#include "runtime/ops/cuda/gemm/few_rows.h"

#include <algorithm>

#include "runtime/ops/cuda/gemm/few_rows.cuh"

namespace ddptrain::cuda {

namespace {

using namespace few_rows;

constexpr std::uint32_t kPrefetched = 24u << 20;  // bytes of the weight that are fetched early
constexpr std::uint32_t kManyWarps = 4096;        // that a GPU has at a time
constexpr std::uint32_t kFewPacks = 8;            // of a lane, which are not worth sharing

/// More warps share a column if there are few, and if they are long.
std::uint32_t warps_of_column(std::uint32_t columns, std::uint32_t in) {
  std::uint32_t warps = 1;
  while (warps < kWarps && columns * warps < kManyWarps && in / kPack > 32 * kFewPacks * warps) warps *= 2;
  return warps;
}

template <bool kGated>
void launch(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& product, const Tensor& y,
            cudaStream_t stream) {
  const auto in = static_cast<std::uint32_t>(weight.dim(1)), out = static_cast<std::uint32_t>(weight.dim(0));
  const std::uint32_t columns = out / kOfColumn<kGated>;
  const std::uint32_t column_bytes = kOfColumn<kGated> * in * static_cast<std::uint32_t>(sizeof(__nv_bfloat16));
  const FewRows a{.rows = static_cast<std::uint32_t>(x.dim(0)),
                  .in = in,
                  .out = out,
                  .columns = columns,
                  .shared_by = warps_of_column(columns, in),
                  .prefetched = std::min(columns, kPrefetched / column_bytes),
                  .x = x.as<__nv_bfloat16>(),
                  .weight = weight.as<__nv_bfloat16>(),
                  .bias = bias.as<__nv_bfloat16>(),
                  .product = product.as<__nv_bfloat16>(),
                  .y = y.as<__nv_bfloat16>()};
  const auto kernel = a.rows == 1   ? few_rows_kernel<1, kGated>
                      : a.rows == 2 ? few_rows_kernel<2, kGated>
                      : a.rows <= 4 ? few_rows_kernel<4, kGated>
                                    : few_rows_kernel<kMostRows, kGated>;
  launch_early(kernel, dim3(ceil_div(columns, kWarps / a.shared_by)), kThreads, 0, stream, a);
}

}  // namespace

bool has_few_rows(const Tensor& x, const Tensor& weight) {
  return x.dtype == DType::bf16 && x.dim(0) >= 1 && x.dim(0) <= kMostRows && x.dim(1) % kPack == 0 &&
         is_aligned(x.data, sizeof(uint4)) && is_aligned(weight.data, sizeof(uint4));
}

void linear_of_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                        cudaStream_t stream) {
  launch<false>(x, weight, bias, y, {}, stream);
}

void linear_swiglu_of_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                               const Tensor& y, cudaStream_t stream) {
  launch<true>(x, weight, bias, pre, y, stream);
}

}  // namespace ddptrain::cuda
