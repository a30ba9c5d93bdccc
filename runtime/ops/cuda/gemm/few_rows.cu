#include "runtime/ops/cuda/gemm/few_rows.h"

#include <algorithm>

#include "runtime/ops/cuda/gemm/few_rows.cuh"

namespace ddptrain::cuda {

namespace {

using namespace few_rows;

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
  if (layer.norm != nullptr) {
    a.norm = {.branch = layer.norm->branch.as<__nv_bfloat16>(),
              .weight = layer.norm->weight.as<__nv_bfloat16>(),
              .epsilon = layer.norm->epsilon,
              .sum = layer.norm->sum.as<__nv_bfloat16>()};
  }
  return a;
}

/// Lines for which a block has shared memory.
std::size_t most_lines(const FewRows& a) {
  const std::size_t of_none = SharedMemory::bytes(a, 0), limit = shared_memory_limit();
  return of_none < limit ? (limit - of_none) / (SharedMemory::bytes(a, 1) - of_none) : 0;
}

/// Whether the kernel takes x, weight and norm.
bool takes(const FewRowsLayer& layer) {
  const Tensor& x = layer.x;
  return x.dtype == DType::bf16 && x.dim(0) >= 1 && x.dim(0) <= kMostRows && x.dim(1) % kPack == 0 &&
         is_aligned(x.data, sizeof(uint4)) && is_aligned(layer.weight.data, sizeof(uint4)) &&
         most_lines(problem_of(layer)) >= kLines;
}

}  // namespace

bool has_few_rows(const Tensor& x, const Tensor& weight) { return takes({.x = x, .weight = weight}); }

bool has_few_rows(const AddedNorm& norm, const Tensor& weight) {
  const Tensor x{norm.residual.data, norm.residual.dtype, {1, norm.residual.size()}};
  const auto aligned = [](const Tensor& row) { return is_aligned(row.data, sizeof(uint4)); };
  return x.dim(1) == norm.weight.size() && norm.y.dtype == DType::bf16 &&
         takes({.x = x, .weight = weight, .norm = &norm}) && aligned(norm.branch) && aligned(norm.weight) &&
         aligned(norm.sum);
}

// A multiprocessor of at most 228 KiB does not hold three blocks. With one row it holds two on Hopper: one computes,
// and one of the next product waits. With three, some would get two blocks of a product and others none.
static_assert(3 * kWarps * kQueued * kStepBytes > 228 * 1024);

/// If rows of the weight have more elements, the launch reserves more than half of the shared memory, so that a
/// multiprocessor holds one block. Qwen2.5 1.5B has such a product in each layer, with 8,960 elements. With two blocks,
/// a token took 14% to 16% longer on H200s: benchmarks/results/qwen2.5-h200-2026-11-29.md
constexpr std::uint32_t kLongLine = 4096;

void linear_of_few_rows(const FewRowsLayer& layer, int multiprocessors, cudaStream_t stream) {
  const FewRows a = problem_of(layer);
  const auto all = static_cast<std::uint32_t>(multiprocessors);
  const auto lines_of_block = [&](std::uint32_t blocks) { return ceil_div(a.columns, blocks) << a.gated; };
  const std::size_t most = most_lines(a);
  std::uint32_t blocks = std::min(all, a.columns);
  while (lines_of_block(blocks) > most) blocks += all;
  const std::size_t least = a.in > kLongLine ? shared_memory_limit() / 2 + 1 : 0;
  const std::size_t bytes = std::max(SharedMemory::bytes(a, lines_of_block(blocks)), least);
  reserve_shared_memory(few_rows_kernel, bytes);
  launch_early(few_rows_kernel, blocks, static_cast<int>(kThreads), bytes, stream, a);
}

}  // namespace ddptrain::cuda
