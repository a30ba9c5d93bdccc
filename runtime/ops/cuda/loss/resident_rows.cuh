#pragma once

#include <cstddef>
#include <optional>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/token_rows.cuh"
#include "runtime/ops/cuda/ptx/bulk_copy.cuh"

/// Cross-entropy of tokens in bf16 for GPUs and code of 9.0 and newer. A thread block, or a cluster of blocks, has one
/// row in shared memory: its logits, then their exponentials. A multiprocessor has at least two blocks, and the copies
/// of some overlap with the exponentials of others. A block ends after its row. So blocks need not leave
/// multiprocessors free for communication: its blocks get a place as soon as a row is done.

namespace ddptrain::cuda::token_rows {

/// Whether the last row comes first: the kernel before has probably written it last, and it is still in the L2 cache.
inline constexpr bool kLastRowFirst = true;

inline constexpr int kResidentThreads = 512;  // of a block

/// Blocks of a cluster, and shared memory of a block.
struct ResidentPlan {
  int cluster;
  std::size_t bytes;

  bool operator==(const ResidentPlan&) const = default;
};

/// Shared memory besides the row.
constexpr std::size_t bytes_before_row(int threads, int cluster) {
  constexpr std::size_t kAlignment = 128, kScalars = 32;
  const std::size_t parts = static_cast<std::size_t>(cluster * threads / 32) * sizeof(Part);
  return (kScalars + parts + kAlignment - 1) / kAlignment * kAlignment;
}

/// For rows of `columns` columns, if a block may have `most_bytes` of shared memory: the smallest cluster of which a
/// multiprocessor has two blocks. None for rows that are too short or too long. The sums of a row depend on the plan,
/// and on nothing else.
constexpr std::optional<ResidentPlan> plan_resident_rows(std::uint32_t columns, std::size_t most_bytes) {
  constexpr std::uint32_t kShort = 16384;
  constexpr std::size_t kReserved = 1024;  // bytes that each block takes besides its own, as the largest block does
  if (columns <= kShort || columns % kPack != 0) return std::nullopt;
  for (const int cluster : {1, 2, 4, 8}) {
    const std::uint32_t packs = (columns / kPack + cluster - 1) / cluster;
    const std::size_t bytes = bytes_before_row(kResidentThreads, cluster) + std::size_t{packs} * sizeof(uint4);
    if (2 * (bytes + kReserved) <= most_bytes + kReserved) return ResidentPlan{cluster, bytes};
  }
  return std::nullopt;
}

template <int kThreads, int kCluster>
struct ResidentMemory {
  std::uint64_t copied;  ///< Barrier of the copy of the logits.
  float target_logit;
  std::uint32_t target;
  std::uint32_t has_earlier;  ///< In the first block: whether a column before the target's is as large.
  Part parts[kCluster * (kThreads / 32)];
};

/// The part of a row that a block has. A thread has packs of eight neighbouring columns, kThreads packs apart.
template <int kThreads, int kCluster>
class ResidentRow {
 public:
  using Memory = ResidentMemory<kThreads, kCluster>;
  static_assert(sizeof(Memory) <= bytes_before_row(kThreads, kCluster));

  __device__ __forceinline__ ResidentRow(const Problem<bf16>& p, std::uint32_t row, char* memory)
      : p_(p), shared_(*reinterpret_cast<Memory*>(memory)), row_(row) {
    const int all = static_cast<int>(p.columns) / kPack, part = (all + kCluster - 1) / kCluster;
    const int first = static_cast<int>(block()) * part;
    first_column_ = first * kPack;
    packs_ = min(part, all - first);
    kept_ = reinterpret_cast<uint4*>(memory + bytes_before_row(kThreads, kCluster));
  }

  /// Until the logits are in shared memory, and the target is known to one thread.
  template <class Targets>
  __device__ __forceinline__ void load(const Targets& targets) {
    if (threadIdx.x == 0) {
      init_barrier(&shared_.copied, 1);
      publish_barriers();
      shared_.has_earlier = 0;
    }
    wait_for_predecessor();
    if (threadIdx.x == 0) {
      const int bytes = packs_ * static_cast<int>(sizeof(uint4));
      expect_bytes(&shared_.copied, bytes);
      load_bytes(kept_, p_.logits + start(), bytes, &shared_.copied);
    }
    if constexpr (kCluster > 1) arrive_at_cluster();
    __syncthreads();
    if (threadIdx.x == kFollower) {
      const std::uint32_t target = targets.target(row_);
      shared_.target = target;
      shared_.target_logit = to_float(p_.logits[start_of_row() + target]);
    }
    __syncwarp();
    await_phase(&shared_.copied, 0);
  }

  /// Logits become exponentials, relative to the largest of the thread's.
  __device__ __forceinline__ void exponentiate() {
    const int counted = static_cast<int>(p_.vocabulary) - first_column_;
    __nv_bfloat162 pair = __float2bfloat162_rn(-INFINITY);
#pragma unroll 4
    for (int pack = threadIdx.x; pack < packs_; pack += kThreads) {
      const uint4 x = kept_[pack];
      Words words = {x.x, x.y, x.z, x.w};
      mask(words, pack * kPack, counted);
      compare(words, pair);
    }
    largest_ = largest_of(pair);
    shift_ = shift_of(largest_);
    float sums[2] = {};
#pragma unroll 2
    for (int pack = threadIdx.x; pack < packs_; pack += kThreads) {
      const uint4 x = kept_[pack];
      Words words = {x.x, x.y, x.z, x.w};
      mask(words, pack * kPack, counted);
      keep(words, shift_, sums);
      kept_[pack] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    total_ = sums[0] + sums[1];
  }

  /// Combines the parts of all threads of the cluster. From then on all know the target.
  __device__ __forceinline__ void combine() {
    constexpr int kWarps = kThreads / 32;
    const Part mine = part_of_warp(largest_, total_);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (kCluster > 1) {
      await_cluster();  // a block must have started before others write to its memory
      Part* const place = &shared_.parts[static_cast<int>(block()) * kWarps + warp];
      if (lane < kCluster) *in_block(static_cast<std::uint32_t>(lane), place) = mine;
    } else if (lane == 0) {
      shared_.parts[warp] = mine;
    }
    meet();
    all_ = combined<kWarps * kCluster>(shared_.parts);
  }

  /// For one thread of the first block: the metrics of the row. All threads call it.
  __device__ __forceinline__ void note_metrics() {
    const float target_logit = shared_.target_logit;
    bool hit = target_logit == all_.largest;
    if (hit) {
      if (has_earlier()) *(kCluster > 1 ? in_block(0, &shared_.has_earlier) : &shared_.has_earlier) = 1;
      meet();
      hit = shared_.has_earlier == 0;
    }
    if (block() == 0 && threadIdx.x == kFollower) p_.partials[row_] = metrics_of(all_, target_logit, hit);
  }

  __device__ __forceinline__ void write_gradient() {
    const float target_logit = shared_.target_logit, scale = scale_of(target_logit, p_.gradient_scale);
    const float factor = scale / all_.total * change_of_base(largest_, all_.largest);
    bf16* const gradient = p_.dlogits + start();
#pragma unroll 2
    for (int pack = threadIdx.x; pack < packs_; pack += kThreads) {
      const uint4 x = kept_[pack];
      const Words words = {x.x, x.y, x.z, x.w};
      __stcs(reinterpret_cast<uint4*>(gradient) + pack, scaled(words, factor));
    }
    const int target = column_of_target(), thread = threadIdx.x;
    if (target >= 0 && target < packs_ * kPack && target / kPack % kThreads == thread) {
      gradient[target] = from_float<bf16>(exponential(target_logit, shift_) * factor - scale);
    }
  }

 private:
  static constexpr int kFollower = 32;  // a thread of another warp than the one that copies

  static __device__ __forceinline__ std::uint32_t block() { return kCluster > 1 ? block_in_cluster() : 0; }
  static __device__ __forceinline__ void meet() {
    if constexpr (kCluster > 1) {
      synchronize_cluster();
    } else {
      __syncthreads();
    }
  }
  __device__ __forceinline__ std::size_t start_of_row() const { return static_cast<std::size_t>(row_) * p_.columns; }
  __device__ __forceinline__ std::size_t start() const { return start_of_row() + first_column_; }
  /// Among the columns of this block. Negative, or too large, if another block has it.
  __device__ __forceinline__ int column_of_target() const { return static_cast<int>(shared_.target) - first_column_; }

  /// Whether a column of this thread before the target's has the largest logit of the row. Logits are read again only
  /// if their exponentials, which are rounded, are equal.
  __device__ __forceinline__ bool has_earlier() const {
    if (largest_ != all_.largest) return false;
    const auto most = __half_as_ushort(__float2half_rn(exponential(largest_, shift_)));
    const int target = column_of_target();
    bool found = false;
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs_ && pack * kPack < target; pack += kThreads) {
      const uint4 x = kept_[pack];
      const Words words = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const int column = pack * kPack + k;
        const bool may_be = (words[k / 2] >> 16 * (k % 2) & 0xFFFFu) == most && column < target;
        if (may_be) found = found || to_float(p_.logits[start() + column]) == largest_;
      }
    }
    return found;
  }

  const Problem<bf16>& p_;
  Memory& shared_;
  uint4* kept_;
  std::uint32_t row_;
  int first_column_, packs_;
  float largest_, shift_, total_;  // of this thread's columns
  Part all_;
};

template <int kThreads, int kCluster, bool kBackwards, class Targets>
__global__ void __launch_bounds__(kThreads, resident_at_most(kThreads, 1536 / kThreads))
    resident_rows_kernel(const Problem<bf16> p, const Targets targets) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  const std::uint32_t number = blockIdx.x / kCluster;
  ResidentRow<kThreads, kCluster> row(p, kBackwards ? p.rows - 1 - number : number, dynamic_shared_memory());
  row.load(targets);
  row.exponentiate();
  row.combine();
  row.note_metrics();
  if (p.dlogits != nullptr) row.write_gradient();
#endif
}

}  // namespace ddptrain::cuda::token_rows
