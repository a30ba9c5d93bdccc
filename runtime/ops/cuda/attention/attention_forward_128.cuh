#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>

#include "runtime/ops/cuda/attention/attention_128.cuh"
#include "runtime/ops/cuda/attention/attention_head.cuh"
#include "runtime/ops/cuda/attention/attention_sizes.h"
#include "runtime/ops/cuda/ring.cuh"

// The forward pass of attention with heads of 128 (Shah et al., "FlashAttention-3", 2024). Tests also run it on the CPU
// (tests/emulated).
//
// A thread block takes one unit of work after another. A unit is two items, one for each warpgroup that multiplies. An
// item is 64 queries of a head. The items of a unit have the same keys and values: their heads share these, and their
// queries are in the same block of 128 positions. A step of a unit has 128 keys. The first step has the keys of the
// unit's own block, of which queries see only those up to their position. The next steps go from the first keys of the
// sample to the block.
//
// The products for the scores of a step run together with the products of the weights of the step before and its
// values. This also holds for the first step of a unit and the last one of the unit before.

namespace ddptrain::cuda::attention_forward_128 {

using attention::quad_max;
using attention::quad_sum;

constexpr int kSlots = 5;  // of the ring

struct Problem : Sizes {
  bf16* out;          // [batch * sequence, width()]
  float* statistics;  // [batch, heads, sequence]: natural logarithm of the sum of exp(scaled scores)
  float scale;

  __host__ __device__ int units() const { return batch * heads * blocks(); }
};

/// 64 queries of a head.
struct Item {
  int sample, head;
  int position;   // of the first query
  int steps;      // 0: no item is left
  bool is_early;  // the queries are the first half of their block
  bool has_half;  // the first step multiplies the first half of its keys. It multiplies all if it is the only step.
};

struct Unit {
  int round;  // of this thread block's units
  int block;  // of queries; -1: no unit is left
  int sample, key_head;
  int pair;  // of the items that have this block and these keys

  /// Units with the most steps come first. Among these, items of the second half of a block come first, since they need
  /// more keys. Most units that follow each other have the same keys.
  static __device__ __forceinline__ Unit of_round(int round, const Problem& p) {
    const int unit = unit_of(round, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    if (unit >= p.units()) return {round, -1, 0, 0, 0};
    const int groups = p.batch * p.key_heads, early = p.queries() / 2, late = p.queries() - early;
    int index = unit % (p.batch * p.heads);
    const bool is_late = index < groups * late;
    if (!is_late) index -= groups * late;
    const int of_group = is_late ? late : early, group = index / of_group;
    return {round, p.blocks() - 1 - unit / (p.batch * p.heads), group / p.key_heads, group % p.key_heads,
            index % of_group + (is_late ? early : 0)};
  }
  __device__ __forceinline__ bool exists() const { return block >= 0; }
  __device__ __forceinline__ int steps() const { return block + 1; }
  __device__ __forceinline__ int first_key(int step) const { return (step == 0 ? block : step - 1) * kKeys; }
  /// An item without steps if no unit is left.
  __device__ __forceinline__ Item item(int warpgroup, const Problem& p) const {
    const int number = 2 * pair + warpgroup, half = number / p.queries();
    return {sample,
            key_head * p.queries() + number % p.queries(),
            block * kBlockRows + half * kRows,
            steps(),
            half == 0,
            half == 0 && steps() > 1};
  }
};

using KeyTiles = char[kTiles][kKeys / kRows * kTileBytes];  // 128 rows of a head

/// Two warpgroups multiply, and a thread of a third one fetches. A multiplying warpgroup has room for two items and
/// their queries. Keys and values go through a ring: the keys of the first step, then the keys of each step and the
/// values of the step before. An item's output takes the place of its queries on its way to global memory. Barriers,
/// with what ends a phase:
///   full[slot]   the bytes of the slot have come
///   empty[slot]  all warps that multiply have read them
///   queries_full[group][i], queries_empty[group][i]   the same for an item and its queries
struct alignas(1024) Shared {
  HeadTiles queries[kWarpgroups][2];
  KeyTiles ring[kSlots];
  Item items[kWarpgroups][2];
  std::uint64_t queries_full[kWarpgroups][2];
  std::uint64_t queries_empty[kWarpgroups][2];
  std::uint64_t full[kSlots];
  std::uint64_t empty[kSlots];
  float scratch[kWarps];  // for compute_first()
};

__device__ __forceinline__ void init_barriers(Shared& shared) {
  for (int i = 0; i < 2 * kWarpgroups; ++i) {
    init_barrier(&shared.queries_full[i / 2][i % 2], 1);
    init_barrier(&shared.queries_empty[i / 2][i % 2], kWarps / kWarpgroups);
  }
  for (int i = 0; i < kSlots; ++i) {
    init_barrier(&shared.full[i], 1);
    init_barrier(&shared.empty[i], kWarps);
  }
  publish_barriers();
}

/// The thread that fetches.
struct Fetcher {
  const CUtensorMap& qkv;
  const Problem& p;
  Shared& shared;
  Turn<kSlots> slot;
  Turn<2> buffer;  // of items

  __device__ __forceinline__ void fetch() {
    int values_row = 0, values_column = 0, values_tiles = 0;  // of the step before
    Unit unit = Unit::of_round(0, p);
    for (; unit.exists(); unit = Unit::of_round(unit.round + 1, p)) {
      put_items(unit);
      const bool has_half = unit.item(kWarpgroups - 1, p).has_half;
      const int column = p.width() + unit.key_head * kHead;
      for (int step = 0; step < unit.steps(); ++step) {
        const int row = unit.sample * p.sequence + unit.first_key(step), tiles = step == 0 && has_half ? 1 : 2;
        fetch_slot(column, row, tiles);
        if (values_tiles > 0) fetch_slot(values_column, values_row, values_tiles);
        values_row = row;
        values_column = column + p.key_width();
        values_tiles = tiles;
      }
    }
    fetch_slot(values_column, values_row, values_tiles);
    put_items(unit);
  }
  __device__ __forceinline__ void put_items(const Unit& unit) {
    for (int i = 0; i < kWarpgroups; ++i) {
      const Item item = unit.item(i, p);
      std::uint64_t* const full = &shared.queries_full[i][buffer.stage];
      await_phase(&shared.queries_empty[i][buffer.stage], buffer.parity ^ 1);
      shared.items[i][buffer.stage] = item;
      if (unit.exists()) {
        expect_bytes(full, kTiles * kTileBytes);
        load_rows(shared.queries[i][buffer.stage], qkv, item.head * kHead, item.sample * p.sequence + item.position,
                  full);
      } else {
        arrive(full);
      }
    }
    buffer.advance();
  }
  /// `tiles`: of 64 rows.
  __device__ __forceinline__ void fetch_slot(int column, int row, int tiles) {
    std::uint64_t* const full = &shared.full[slot.stage];
    await_phase(&shared.empty[slot.stage], slot.parity ^ 1);
    expect_bytes(full, tiles * kTiles * kTileBytes);
    for (int i = 0; i < tiles; ++i) {
      for (int half = 0; half < kTiles; ++half) {
        load_tile(shared.ring[slot.stage][half] + i * kTileBytes, qkv, column + half * kColumns, row + i * kRows, full,
                  CachePolicy::normal);
      }
    }
    slot.advance();
  }
};

/// State of the online softmax for the two rows of a thread: elements 4 i and 4 i + 1, and elements 4 i + 2 and 4 i
/// + 3.
struct Softmax {
  float largest[2];  // scaled score, in base 2
  float total[2];    // of the weights in this thread's columns. A weight is 2 to the power of score less largest score.
  float correction[2];  // makes sums of earlier weights relative to the largest score of now
};

/// A thread that multiplies.
struct Worker {
  const Problem& p;
  Shared& shared;
  const int group, lane;
  std::uint32_t weight[8][4];
  float score[64], sum[64];
  Softmax softmax;
  bool adds = false;  // to sum
  Turn<kSlots> slot;  // of the next keys or values
  Turn<2> buffer;     // of the item

  __device__ __forceinline__ Worker(const Problem& problem, Shared& memory)
      : p(problem),
        shared(memory),
        group(uniform(static_cast<int>(threadIdx.x) / 128)),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  /// Computes all items.
  __device__ __forceinline__ void work() {
    await_item();
    begin();
    while (true) {
      int left = uniform(item().steps) - 1;
      if (has_half()) {
        step<true>();
        --left;
      }
      for (; left > 0; --left) step<false>();
      buffer.advance();
      await_item();
      if (uniform(item().steps) == 0) break;
      if (has_half()) {
        change_item<true>();
      } else {
        change_item<false>();
      }
    }
    end();
  }
  __device__ __forceinline__ void await_item() {
    await_phase(&shared.queries_full[group][buffer.stage], buffer.parity);
  }
  __device__ __forceinline__ const Item& item() const { return shared.items[group][buffer.stage]; }
  __device__ __forceinline__ bool has_half() const { return uniform(static_cast<int>(item().has_half)) != 0; }

  /// Computes the weights of the first step.
  __device__ __forceinline__ void begin() {
    await_phase(&shared.full[0], 0);
    start_scores<false>(0);
    wgmma_wait<0>();
    settle(score);
    release(&shared.empty[0]);
    slot.advance();
    mask<false>();
    exponentiate<true, false>();
    put_weights<false>();
  }

  /// Adds the products of the weights, and computes the weights of the next step. kHalf: there are weights of half of
  /// the keys.
  template <bool kHalf>
  __device__ __forceinline__ void step() {
    start<false, kHalf>();
    exponentiate<false, false>();
    finish_sums();
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i] *= softmax.correction[i / 2 % 2];
    put_weights<false>();
  }

  /// Writes the output of the item before, and computes the weights of the first step of the item. kHalf: of half of
  /// the keys.
  template <bool kHalf>
  __device__ __forceinline__ void change_item() {
    start<kHalf, false>();
    const Softmax finished = softmax;
    mask<kHalf>();
    exponentiate<true, kHalf>();
    finish_sums();
    put_output(finished);
    put_weights<kHalf>();
    adds = false;
  }

  /// Writes the last output.
  __device__ __forceinline__ void end() {
    await_phase(&shared.full[slot.stage], slot.parity);
    start_sums<false>(slot.stage);
    finish_sums();
    put_output(softmax);
  }

  /// Starts the products for the scores of the next step and those of the weights, and waits for the scores.
  template <bool kHalfScores, bool kHalfSums>
  __device__ __forceinline__ void start() {
    const int keys = slot.stage;
    await_phase(&shared.full[slot.stage], slot.parity);
    slot.advance();
    await_phase(&shared.full[slot.stage], slot.parity);
    start_scores<kHalfScores>(keys);
    start_sums<kHalfSums>(slot.stage);
    wgmma_wait<1>();
    settle(score);
    release(&shared.empty[keys]);
  }
  /// Commits a group.
  template <bool kHalf>
  __device__ __forceinline__ void start_scores(int keys) {
    constexpr int kBytes = sizeof(shared.ring[0][0]);
    if constexpr (kHalf) {
      start_products(reinterpret_cast<float(&)[32]>(score), shared.queries[group][buffer.stage], shared.ring[keys],
                     kBytes);
    } else {
      start_products(score, shared.queries[group][buffer.stage], shared.ring[keys], kBytes);
    }
  }
  /// Commits a group.
  template <bool kHalf>
  __device__ __forceinline__ void start_sums(int values) {
    const SwizzledOperand right(shared_address(shared.ring[values]), sizeof(shared.ring[0][0]));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < (kHalf ? 4 : 8); ++k) {
      wgmma_m64n128k16<true>(sum, weight[k], right + kStepBytes * k, adds || k > 0);
    }
    wgmma_commit();
    adds = true;
  }
  __device__ __forceinline__ void finish_sums() {
    wgmma_wait<0>();
    settle(sum);
    release(&shared.empty[slot.stage]);
    slot.advance();
  }

  /// Turns scores into weights, relative to the largest score so far.
  template <bool kFirst, bool kHalf>
  __device__ __forceinline__ void exponentiate() {
    constexpr int kCount = kHalf ? 32 : 64;
    const float scale_log2 = p.scale * kLog2e;
    float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], fmaxf(score[i], score[i + 1]));
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float of_step = quad_max(largest[row]) * scale_log2;
      largest[row] = kFirst ? of_step : fmaxf(softmax.largest[row], of_step);
      softmax.correction[row] = kFirst ? 0.0f : exp2_approximate(softmax.largest[row] - largest[row]);
      softmax.largest[row] = largest[row];
      softmax.total[row] = kFirst ? 0.0f : softmax.total[row] * softmax.correction[row];
    }
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const int row = i / 2 % 2;
      score[i] = exp2_approximate(fmaf(score[i], scale_log2, -largest[row]));
      score[i + 1] = exp2_approximate(fmaf(score[i + 1], scale_log2, -largest[row]));
      softmax.total[row] += score[i] + score[i + 1];
    }
    compute_first(softmax.total[0] + softmax.total[1], &shared.scratch[threadIdx.x / 32]);
  }
  /// Removes the scores of keys that come after the query, in the first step of an item.
  template <bool kHalf>
  __device__ __forceinline__ void mask() {
    const int after = first_across() - (kHalf || item().is_early ? 0 : kRows);
#pragma unroll
    for (int i = 0; i < (kHalf ? 32 : 64); ++i) {
      if (after + across(i) > 0) score[i] = -INFINITY;
    }
  }
  template <bool kHalf>
  __device__ __forceinline__ void put_weights() {
#pragma unroll
    for (int k = 0; k < (kHalf ? 4 : 8); ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weight[k][i] = pack_bf16(score[8 * k + 2 * i], score[8 * k + 2 * i + 1]);
    }
  }

  /// Writes output and statistics of the item before.
  __device__ __forceinline__ void put_output(const Softmax& finished) {
    const int before = buffer.stage ^ 1;
    const Item& item = shared.items[group][before];
    const int first = static_cast<int>(threadIdx.x) % 128 / 32 * 16 + lane / 4;
    float* const statistics =
        p.statistics + (static_cast<std::size_t>(item.sample) * p.heads + item.head) * p.sequence + item.position;
    float factor[2];
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float total = quad_sum(finished.total[row]);
      factor[row] = 1.0f / total;
      if (lane % 4 == 0) {
        statistics[first + 8 * row] = (finished.largest[row] + log2f(total)) * std::numbers::ln2_v<float>;
      }
    }
    barrier_wait(1 + group, 128);  // all of its warps have multiplied the queries
    const std::size_t row = static_cast<std::size_t>(item.sample) * p.sequence + item.position;
    put_rows(sum, factor, p.out + row * p.width() + item.head * kHead, p.width(), shared.queries[group][before][0]);
    fence_async_proxy();
    release(&shared.queries_empty[group][before]);
  }
};

__global__ void __launch_bounds__(kThreadsAndFetching, 1)
    forward_kernel(const __grid_constant__ CUtensorMap qkv, const __grid_constant__ Problem p) {
#if DDP_WGMMA
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  if (threadIdx.x < kThreads) {
    take_registers<kTaken>();
    Worker(p, shared).work();
  } else {
    leave_registers<kLeft>();
    if (threadIdx.x == kThreads) Fetcher{qkv, p, shared, {}, {}}.fetch();
  }
#endif
}

}  // namespace ddptrain::cuda::attention_forward_128
