#include "runtime/ops/cuda/gemm/few_rows.h"

#include <algorithm>

#include "runtime/ops/cuda/gemm/few_rows.cuh"

namespace ddptrain::cuda {

namespace {

using namespace few_rows;

std::uint32_t warps_of(std::int64_t in, int packs) { return ceil_div(in, std::int64_t{32} * packs * kPack); }

/// Groups of warps for which a block has threads, and shared memory.
std::uint32_t groups_of(std::uint32_t warps, int packs) {
  constexpr std::size_t kRest = std::size_t{8} << 10;  // for the sums of some columns
  const std::size_t queue = kMostQueued * 32 * warps * sizeof(uint4);
  const std::size_t fit = (shared_memory_limit() - kRest) / queue;
  return std::min(static_cast<std::uint32_t>(most_warps(packs)) / warps, static_cast<std::uint32_t>(fit));
}

/// The smallest number of packs of a line that a thread can have. 0: there is none.
int packs_of_thread(std::int64_t in) {
  for (const int packs : {1, 2, 3, 4, 6}) {
    if (groups_of(warps_of(in, packs), packs) > 0) return packs;
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
  a.warps = warps_of(a.in, kPacks);
  a.groups = groups_of(a.warps, kPacks);
  if (layer.norm != nullptr) {
    a.norm = {.branch = layer.norm->branch.as<__nv_bfloat16>(),
              .weight = layer.norm->weight.as<__nv_bfloat16>(),
              .epsilon = layer.norm->epsilon,
              .sum = layer.norm->sum.as<__nv_bfloat16>()};
  }
  return a;
}

/// Lines for which a block has shared memory.
template <int kRows, int kPacks>
std::uint32_t most_lines(FewRows a) {
  a.gated = 0;
  const std::size_t of_none = SharedMemory<kRows, kPacks>::bytes(a, 0);
  const std::size_t of_one = SharedMemory<kRows, kPacks>::bytes(a, 1) - of_none;
  return static_cast<std::uint32_t>((shared_memory_limit() - of_none) / of_one);
}

/// A multiprocessor has no room for more than two blocks. So while one of them computes there, one of the next product
/// waits, and all multiprocessors have as many of each.
template <int kRows, int kPacks>
void launch(FewRows a, int multiprocessors, cudaStream_t stream) {
  const auto all = static_cast<std::uint32_t>(multiprocessors);
  const std::uint32_t most = most_lines<kRows, kPacks>(a);
  std::uint32_t blocks = std::min(all, a.columns);
  while (ceil_div(a.columns, blocks) << a.gated > most) blocks += all;
  const auto kernel = few_rows_kernel<kRows, kPacks>;
  const std::size_t needed = SharedMemory<kRows, kPacks>::bytes(a, ceil_div(a.columns, blocks));
  const std::size_t bytes = std::max(needed, shared_memory_limit() / 3);
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
