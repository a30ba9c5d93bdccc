#include "runtime/ops/cuda/gemm/few_rows.h"

#include <algorithm>

#include "runtime/ops/cuda/gemm/few_rows.cuh"

namespace ddptrain::cuda {

namespace {

using namespace few_rows;

constexpr std::uint32_t kPrefetched = 24u << 20;  // bytes of the weight that are fetched early
constexpr std::uint32_t kMostLines = 160;         // of a block

/// The smallest number of packs of a line for which a block has enough threads. 0: there is none.
int packs_of_thread(std::int64_t in) {
  for (const int packs : {1, 2, 3, 4, 6}) {
    if (in <= std::int64_t{packs} * 32 * most_warps(packs) * kPack) return packs;
  }
  return 0;
}

template <int kPacks>
FewRows problem_of(const FewRowsLayer& layer) {
  FewRows a{.rows = static_cast<std::uint32_t>(layer.x.dim(0)),
            .in = static_cast<std::uint32_t>(layer.weight.dim(1)),
            .out = static_cast<std::uint32_t>(layer.weight.dim(0)),
            .gated = layer.swiglu ? 1u : 0u,
            .x = layer.x.as<__nv_bfloat16>(),
            .weight = layer.weight.as<__nv_bfloat16>(),
            .bias = layer.bias.as<__nv_bfloat16>(),
            .product = layer.product.as<__nv_bfloat16>(),
            .y = layer.swiglu.as<__nv_bfloat16>()};
  a.columns = a.out >> a.gated;
  a.warps = ceil_div(a.packs(), 32 * kPacks);
  a.groups = most_warps(kPacks) / a.warps;
  if (layer.norm != nullptr) {
    a.norm = {.branch = layer.norm->branch.as<__nv_bfloat16>(),
              .weight = layer.norm->weight.as<__nv_bfloat16>(),
              .epsilon = layer.norm->epsilon,
              .sum = layer.norm->sum.as<__nv_bfloat16>()};
  }
  return a;
}

template <int kRows, int kPacks>
void launch(FewRows a, int multiprocessors, cudaStream_t stream) {
  const std::uint32_t lines_of_all = static_cast<std::uint32_t>(multiprocessors) * kMostLines / kRows;
  const std::uint32_t blocks =
      std::min(a.columns, static_cast<std::uint32_t>(multiprocessors) * ceil_div(a.out, lines_of_all));
  a.prefetched =
      kPrefetched / (a.in * static_cast<std::uint32_t>(sizeof(__nv_bfloat16))) / a.lines_of_column() / blocks;
  const auto kernel = few_rows_kernel<kRows, kPacks>;
  const std::size_t bytes = SharedMemory<kRows, kPacks>::bytes(a, ceil_div(a.columns, blocks));
  reserve_shared_memory(kernel, bytes);
  launch_early(kernel, blocks, static_cast<int>(a.threads()), bytes, stream, a);
}

template <int kPacks>
void launch(const FewRows& a, int multiprocessors, cudaStream_t stream) {
  if (a.rows == 1) return launch<1, kPacks>(a, multiprocessors, stream);
  if (a.rows == 2) return launch<2, kPacks>(a, multiprocessors, stream);
  if (a.rows <= 4) return launch<4, kPacks>(a, multiprocessors, stream);
  launch<kMostRows, kPacks>(a, multiprocessors, stream);
}

}  // namespace

bool has_few_rows(const Tensor& x, const Tensor& weight) {
  return x.dtype == DType::bf16 && x.dim(0) >= 1 && x.dim(0) <= kMostRows && x.dim(1) % kPack == 0 &&
         packs_of_thread(x.dim(1)) > 0 && is_aligned(x.data, sizeof(uint4)) && is_aligned(weight.data, sizeof(uint4));
}

bool has_few_rows(const AddedNorm& norm, const Tensor& weight) {
  const Tensor x{norm.residual.data, norm.residual.dtype, {1, norm.residual.size()}};
  const auto aligned = [](const Tensor& row) { return is_aligned(row.data, sizeof(uint4)); };
  return x.dim(1) == norm.weight.size() && norm.y.dtype == DType::bf16 && has_few_rows(x, weight) &&
         aligned(norm.branch) && aligned(norm.weight) && aligned(norm.sum);
}

void linear_of_few_rows(const FewRowsLayer& layer, int multiprocessors, cudaStream_t stream) {
  const auto run = [&]<int kPacks>() { launch<kPacks>(problem_of<kPacks>(layer), multiprocessors, stream); };
  switch (packs_of_thread(layer.weight.dim(1))) {
    case 1:
      return run.template operator()<1>();
    case 2:
      return run.template operator()<2>();
    case 3:
      return run.template operator()<3>();
    case 4:
      return run.template operator()<4>();
    default:
      run.template operator()<6>();
  }
}

}  // namespace ddptrain::cuda
