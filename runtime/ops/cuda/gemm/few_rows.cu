#include "runtime/ops/cuda/gemm/few_rows.h"

#include <algorithm>

#include "runtime/ops/cuda/gemm/few_rows.cuh"

namespace ddptrain::cuda {

namespace {

using namespace few_rows;

constexpr std::size_t kPrefetched = 16u << 20;  // bytes of the weight that are fetched early

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
