#include "runtime/ops/attention/attention_plan.h"

#include <algorithm>
#include <vector>

#include "runtime/ops/cuda/attention/attention_sizes.h"

namespace ddptrain {

namespace {

namespace heads_of_64 = cuda::attention_wgmma;
namespace heads_of_128 = cuda::attention_wgmma_128;
namespace forward_128 = cuda::attention_forward_128;

/// Whether kernels can count the packs of qkv in 31 bits. Then sizes of the shape fit an int.
bool is_counted(const AttentionShape& s, int pack) {
  return s.batch * s.sequence * s.columns() / pack < (std::int64_t{1} << 31);
}

bool suits_heads_of_64(const AttentionShape& s, const GpuProperties& gpu) {
  using namespace heads_of_64;
  return s.head_size == kHead && s.sequence % kKeys == 0 && s.batch * s.heads >= gpu.multiprocessors &&
         is_counted(s, kPack) && least_shared_bytes(s.sequence) <= gpu.shared_memory;
}

bool suits_heads_of_128(const AttentionShape& s, const GpuProperties& gpu) {
  using namespace heads_of_128;
  const std::int64_t heads = s.batch * s.heads, blocks = s.sequence / kKeys;
  return s.head_size == kHead && s.sequence % kKeys == 0 && heads * blocks >= gpu.multiprocessors &&
         is_counted(s, kPack) && kSharedBytes <= gpu.shared_memory &&
         dscore_tiles(static_cast<int>(blocks)) < std::size_t{1} << 31;  // up to 4,194,176 tokens
}

/// Keys and values that stay in Hopper's L2 cache. Thread blocks compute the last queries of all samples first, so they
/// read each key as often as there are blocks of queries after it, far apart in time.
constexpr std::int64_t kMostKeyBytes = std::int64_t{32} << 20;
/// Heads that share a key and read it at about the same time: then memory is fast enough for any number of keys.
constexpr std::int64_t kEnoughQueries = 4;

bool reads_keys_fast(const AttentionShape& s) {
  return s.heads / s.key_heads >= kEnoughQueries || 2 * s.batch * s.sequence * s.key_width() * 2 <= kMostKeyBytes;
}

bool suits_forward_128(const AttentionShape& s, const GpuProperties& gpu) {
  using namespace forward_128;
  return s.head_size == kHead && s.sequence % kKeys == 0 && reads_keys_fast(s) && is_counted(s, kPack) &&
         kSharedBytes <= gpu.shared_memory;
}

/// The most steps that a thread block has, if `blocks` thread blocks take the units.
std::int64_t most_steps(const heads_of_128::Work& w, int blocks) {
  std::vector<std::int64_t> steps(static_cast<std::size_t>(blocks));
  for (int round = 0; round * blocks < units_of(w); ++round) {
    for (int block = 0; block < blocks; ++block) {
      const int unit = heads_of_128::unit_of(round, block, blocks);
      if (unit >= units_of(w)) continue;
      const int part = unit % w.parts;
      const int heads = queries_before(w, part + 1) - queries_before(w, part);
      steps[static_cast<std::size_t>(block)] += std::int64_t{2} * heads * (w.blocks() - unit / groups_of(w));
    }
  }
  return *std::max_element(steps.begin(), steps.end());
}

/// The least number with which no thread block has many more steps than the others.
int parts_of(heads_of_128::Work w, int blocks) {
  const double all = static_cast<double>(w.batch) * w.heads * w.blocks() * (w.blocks() + 1);
  for (w.parts = 1; w.parts < w.queries(); ++w.parts) {
    if (static_cast<double>(most_steps(w, blocks)) <= 1.1 * all / blocks) break;
  }
  return w.parts;
}

/// On Hopper, cuDNN's deterministic algorithm keeps the gradients of all scores in bf16, with and without the mask: see
/// "Force dP workspace implementation" in cudnn-frontend. If heads share keys, it also keeps dk and dv of each head.
std::size_t cudnn_bytes(const AttentionShape& s, const GpuProperties& gpu) {
  const std::size_t deltas = attention_deltas_bytes(s);
  if (gpu.capability != 90) return deltas;
  const auto heads = static_cast<std::size_t>(s.batch * s.heads), sequence = static_cast<std::size_t>(s.sequence);
  const std::size_t of_heads =
      s.heads == s.key_heads ? 0 : 2 * heads * sequence * static_cast<std::size_t>(s.head_size);
  return deltas + 2 * (heads * sequence * sequence + of_heads);
}

}  // namespace

AttentionBackwardPlan plan_for_heads_of_64(const AttentionShape& shape, int multiprocessors) {
  return {.kernels = AttentionKernels::heads_of_64,
          .scratch_bytes = heads_of_64::Workspace(nullptr, shape, multiprocessors).bytes};
}

AttentionBackwardPlan plan_for_heads_of_128(const AttentionShape& shape, int multiprocessors) {
  heads_of_128::Work work{heads_of_128::sizes_of(shape), 1};
  work.parts = parts_of(work, multiprocessors);
  return {.kernels = AttentionKernels::heads_of_128,
          .parts = work.parts,
          .scratch_bytes = heads_of_128::Workspace(nullptr, work).bytes};
}

bool suits_cudnn_attention(const AttentionShape& shape, DType dtype) {
  return dtype == DType::bf16 && shape.sequence % 128 == 0 && shape.head_size % 8 == 0 && shape.head_size <= 256;
}

bool suits_short_attention(const AttentionShape& shape, DType dtype, const GpuProperties& gpu) {
  using namespace cuda::attention_short;
  const int tiles = tiles_of(shape.sequence);
  return dtype == DType::bf16 && shape.heads == shape.key_heads && shape.head_size % 8 == 0 &&
         shape.head_size <= kMostHead && tiles <= kMaxTiles &&
         shared_bytes(tiles, columns_of(shape.head_size)) <= gpu.shared_memory;
}

AttentionKernels plan_attention_forward(const AttentionShape& shape, DType dtype, const GpuProperties& gpu) {
  if (dtype == DType::bf16 && gpu.warpgroups && suits_forward_128(shape, gpu)) return AttentionKernels::heads_of_128;
  return suits_cudnn_attention(shape, dtype) ? AttentionKernels::cudnn : AttentionKernels::others;
}

AttentionBackwardPlan plan_attention_backward(const AttentionShape& shape, DType dtype, const GpuProperties& gpu) {
  if (dtype == DType::bf16 && gpu.warpgroups) {
    if (suits_heads_of_64(shape, gpu)) return plan_for_heads_of_64(shape, gpu.multiprocessors);
    if (suits_heads_of_128(shape, gpu)) return plan_for_heads_of_128(shape, gpu.multiprocessors);
  }
  if (suits_cudnn_attention(shape, dtype)) {
    return {.kernels = AttentionKernels::cudnn, .scratch_bytes = cudnn_bytes(shape, gpu)};
  }
  if (suits_short_attention(shape, dtype, gpu)) return {.kernels = AttentionKernels::short_texts};
  return {.kernels = AttentionKernels::others, .scratch_bytes = attention_deltas_bytes(shape)};
}

}  // namespace ddptrain
