#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/attention/attention_wgmma_128.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using namespace attention_wgmma_128;

/// The most steps that a thread block has, if `blocks` thread blocks take the units.
std::int64_t most_steps(const Problem& p, int blocks) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(blocks));
  for (int round = 0; round * blocks < p.units(); ++round) {
    for (int block = 0; block < blocks; ++block) {
      const int unit = unit_of(round, block, blocks);
      if (unit >= p.units()) continue;
      const int part = unit % p.parts;
      const int heads = p.queries_before(part + 1) - p.queries_before(part);
      steps[static_cast<std::size_t>(block)] += std::int64_t{2} * heads * (p.blocks() - unit / p.groups());
    }
  }
  return *std::max_element(steps.begin(), steps.end());
}

/// The least number with which no thread block has many more steps than the others.
int parts_of(Problem p, int blocks) {
  const double all = static_cast<double>(p.batch) * p.heads * p.blocks() * (p.blocks() + 1);
  for (p.parts = 1; p.parts < p.queries(); ++p.parts) {
    if (static_cast<double>(most_steps(p, blocks)) <= 1.1 * all / blocks) break;
  }
  return p.parts;
}

Problem problem_of(const AttentionShape& s, int multiprocessors) {
  Problem p{};
  p.batch = static_cast<int>(s.batch);
  p.sequence = static_cast<int>(s.sequence);
  p.heads = static_cast<int>(s.heads);
  p.key_heads = static_cast<int>(s.key_heads);
  p.parts = parts_of(p, multiprocessors);
  p.scale = 1.0f / std::sqrt(static_cast<float>(s.head_size));
  return p;
}

/// They grow with the square of the sequence: 28 heads take 0.5 GB for 4,096 tokens, and 31 GB for 32,768.
constexpr std::size_t kMostDscoreBytes = std::size_t{2} << 30;

/// `heads`: of all samples.
std::size_t dscore_bytes(std::size_t heads, int blocks) { return heads * Problem::dscore_tiles(blocks) * kTileBytes; }

struct Workspace {
  float* deltas;
  char* dscores;
  bf16* parts;  ///< Of dk and dv: [rows, 2, key_heads, parts, kHead]. Empty if there is one part.
  std::size_t bytes;

  Workspace(void* memory, const Problem& p) {
    Pieces pieces(memory);
    const auto heads = static_cast<std::size_t>(p.batch) * p.heads,
               rows = static_cast<std::size_t>(p.batch) * p.sequence;
    deltas = pieces.take<float>(heads * p.sequence);
    dscores = pieces.take<char>(dscore_bytes(heads, p.blocks()));
    parts = pieces.take<bf16>(p.parts > 1 ? 2 * rows * p.key_heads * p.parts * kHead : 0);
    bytes = pieces.bytes();
  }
};

}  // namespace

bool suits_wgmma_128_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors,
                                        int multiprocessors) {
  const std::int64_t heads = shape.batch * shape.heads, blocks = shape.sequence / kKeys;
  return multiplies_by_warpgroups() && shape.head_size == kHead && shape.sequence % kKeys == 0 &&
         heads * blocks >= multiprocessors &&
         dscore_bytes(static_cast<std::size_t>(heads), static_cast<int>(blocks)) <= kMostDscoreBytes &&
         shape.batch * shape.sequence * shape.columns() / kPack < (std::int64_t{1} << 31) &&
         sizeof(KeysShared) <= shared_memory_limit() && is_aligned(tensors.qkv, 16) && is_aligned(tensors.out, 16) &&
         is_aligned(tensors.d_output, 16) && is_aligned(tensors.statistics, 16) && is_aligned(tensors.dqkv, 16);
}

std::size_t wgmma_128_attention_backward_workspace(const AttentionShape& shape, int multiprocessors) {
  return Workspace(nullptr, problem_of(shape, multiprocessors)).bytes;
}

void wgmma_128_attention_backward(const AttentionShape& shape, const AttentionTensors& tensors, void* workspace,
                                  const Multiprocessors& multiprocessors, cudaStream_t stream) {
  const std::int64_t rows = shape.batch * shape.sequence;
  const Maps maps{swizzled_tiles(tensors.qkv, rows, shape.columns(), kRows),
                  swizzled_tiles(tensors.d_output, rows, shape.width(), kRows)};
  Problem p = problem_of(shape, multiprocessors.all);
  const Workspace memory(workspace, p);
  launch_kernel(deltas_kernel, ceil_div(rows * shape.heads, kDeltasOfBlock), kDeltaThreads, 0, stream,
                static_cast<const bf16*>(tensors.out), static_cast<const bf16*>(tensors.d_output), memory.deltas, p);
  p.statistics = tensors.statistics;
  p.deltas = memory.deltas;
  p.dscores = memory.dscores;
  p.dqkv = static_cast<bf16*>(tensors.dqkv);
  p.dkeys = p.parts > 1 ? memory.parts : p.dqkv + shape.width();
  p.dvalues = p.dkeys + static_cast<std::ptrdiff_t>(p.key_heads) * p.parts * kHead;
  p.dkeys_row = p.parts > 1 ? 2 * p.key_heads * p.parts * kHead : static_cast<int>(shape.columns());
  reserve_shared_memory(keys_kernel, sizeof(KeysShared));
  launch_kernel(keys_kernel, std::min(multiprocessors.free, p.units()), kThreadsAndFetching, sizeof(KeysShared), stream,
                maps, p);
  reserve_shared_memory(queries_kernel, sizeof(QueriesShared));
  launch_kernel(queries_kernel, p.batch * p.heads * p.blocks(), kThreads, sizeof(QueriesShared), stream, maps, p);
  if (p.parts == 1) return;
  const std::int64_t packs = rows * 2 * shape.key_heads * kPacksOfHead;
  launch_kernel(sum_parts_kernel, ceil_div(packs, kSumThreads), kSumThreads, 0, stream, p, packs);
}

}  // namespace ddptrain::cuda
