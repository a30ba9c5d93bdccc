#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/attention/attention_128.cuh"
#include "runtime/ops/cuda/attention/attention_sizes.h"
#include "runtime/ops/cuda/ring.cuh"

// The backward pass of attention with heads of 128. Tests also run it on the CPU (tests/emulated).
//   deltas_kernel   d_output * out, summed over each head
//   keys_kernel     dk, dv and the gradients of the scores ("dscores"): for a block of 128 keys, it loops over queries
//   queries_kernel  dq = dscores keys
//   sum_parts_kernel  sums of parts of dk and dv
// All sums have a fixed order. dscores go through global memory in bf16, in tiles of 64 keys and 64 queries, which lie
// there as wgmma reads them.
//
// A thread block of keys_kernel takes one unit of work after another: a block of 128 keys of one head of keys, with
// some of the heads of queries that share it. If these are not all, a unit gives a part of dk and dv, and
// sum_parts_kernel adds up the parts. A unit takes as many steps as its keys have tiles of queries, from the diagonal
// on.

namespace ddptrain::cuda::attention_wgmma_128 {

constexpr int kStages = 4;       // of keys_kernel
constexpr int kQueryStages = 3;  // of queries_kernel

struct Problem : Sizes {
  const float* statistics;  // [batch, heads, sequence]: natural logarithm of the sum of exp(scaled scores)
  const float* deltas;      // the same: d_output * out, summed over each head
  char* dscores;
  bf16* dqkv;     // [batch * sequence, columns()]
  bf16* dkeys;    // of the first part: in dqkv, or of the parts
  bf16* dvalues;  // the same
  int dkeys_row;  // elements from a row of them to the next
  int parts;      // of the heads of queries that share a key
  float scale;

  /// dscores of 64 queries and the first 64 keys. Those of the next keys follow, up to the end of the block of keys
  /// that meets the diagonal.
  __device__ char* dscores_of(int sample_head, int tile) const {
    const int pair = tile / 2;
    const std::size_t before = 2 * pair * (pair + 1) + tile % 2 * 2 * (pair + 1);
    return dscores + (sample_head * dscore_tiles(blocks()) + before) * kTileBytes;
  }
};

/// A tile of queries and a block of keys.
struct Place {
  int round;  // of this thread block's units
  int block;  // of keys
  int sample, key_head, part;
  int head, end;  // of queries, and the end of those of the unit
  int tile;       // of queries; -1: there are no more units

  static __device__ __forceinline__ Place start(int round, const Problem& p) {
    const int unit = unit_of(round, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    if (unit >= units_of(p)) return {round, 0, 0, 0, 0, 0, 0, -1};
    const int block = unit / groups_of(p), group = unit % groups_of(p);
    const int part = group % p.parts, key_head = group / p.parts % p.key_heads;
    const int first = key_head * p.queries();
    return {round,
            block,
            group / p.parts / p.key_heads,
            key_head,
            part,
            first + queries_before(p, part),
            first + queries_before(p, part + 1),
            2 * block};
  }
  __device__ __forceinline__ bool exists() const { return tile >= 0; }
  /// How many the unit takes, if this is its first tile.
  __device__ __forceinline__ int steps(const Problem& p) const { return (end - head) * (p.tiles() - 2 * block); }
  __device__ __forceinline__ int row(const Problem& p) const { return sample * p.sequence; }
  __device__ __forceinline__ int sample_head(const Problem& p) const { return sample * p.heads + head; }
  __device__ __forceinline__ void advance(const Problem& p) {
    advance_in_unit(p);
    if (head == end) *this = start(round + 1, p);
  }
  /// If this is not the unit's last tile.
  __device__ __forceinline__ void advance_in_unit(const Problem& p) {
    if (++tile < p.tiles()) return;
    tile = 2 * block;
    ++head;
  }
};

/// Two warpgroups multiply. Of a third one, a thread fetches, and a thread for each of the others copies dscores.
/// Barriers, with what ends a phase:
///   full[stage]        the bytes of the stage have come
///   empty[stage]       all warps have read them
///   keys_full, keys_empty   the same for keys and values
///   dscores_full[group][i]  the warps of the group have written the tile
///   dscores_empty[group][i] the copy has read it
struct alignas(1024) KeysShared {
  HeadTiles keys[kWarpgroups];
  HeadTiles values[kWarpgroups];
  HeadTiles queries[kStages];
  HeadTiles douts[kStages];
  char dscores[kWarpgroups][2][kTileBytes];
  float statistics[kStages][kRows];
  float deltas[kStages][kRows];
  std::uint64_t full[kStages];
  std::uint64_t empty[kStages];
  std::uint64_t keys_full;
  std::uint64_t keys_empty;
  std::uint64_t dscores_full[kWarpgroups][2];
  std::uint64_t dscores_empty[kWarpgroups][2];
};

struct Maps {
  CUtensorMap qkv, d_output;
};

__device__ __forceinline__ void init_barriers(KeysShared& shared) {
  for (int i = 0; i < kStages; ++i) {
    init_barrier(&shared.full[i], 1);
    init_barrier(&shared.empty[i], kWarps);
  }
  init_barrier(&shared.keys_full, 1);
  init_barrier(&shared.keys_empty, kWarps);
  for (int i = 0; i < 2 * kWarpgroups; ++i) {
    init_barrier(&shared.dscores_full[i / 2][i % 2], kWarps / kWarpgroups);
    init_barrier(&shared.dscores_empty[i / 2][i % 2], 1);
  }
  publish_barriers();
}

__device__ __forceinline__ void fetch_keys(const Maps& maps, const Problem& p, KeysShared& shared, const Place& at) {
  expect_bytes(&shared.keys_full, 2 * kWarpgroups * kTiles * kTileBytes);
  const int column = p.width() + at.key_head * kHead, row = at.row(p) + at.block * kKeys;
  for (int i = 0; i < kWarpgroups; ++i) {
    load_rows(shared.keys[i], maps.qkv, column, row + i * kRows, &shared.keys_full);
    load_rows(shared.values[i], maps.qkv, column + p.key_width(), row + i * kRows, &shared.keys_full);
  }
}
__device__ __forceinline__ void fetch_queries(const Maps& maps, const Problem& p, KeysShared& shared, const Place& at,
                                              int stage) {
  std::uint64_t* const full = &shared.full[stage];
  const int row = at.row(p) + at.tile * kRows, column = at.head * kHead;
  const std::size_t first = static_cast<std::size_t>(at.sample_head(p)) * p.sequence + at.tile * kRows;
  expect_bytes(full, 2 * kTiles * kTileBytes + 2 * kRows * 4);
  load_rows(shared.queries[stage], maps.qkv, column, row, full);
  load_rows(shared.douts[stage], maps.d_output, column, row, full);
  load_bytes(shared.statistics[stage], p.statistics + first, kRows * 4, full);
  load_bytes(shared.deltas[stage], p.deltas + first, kRows * 4, full);
}
/// By one thread.
__device__ __forceinline__ void fetch(const Maps& maps, const Problem& p, KeysShared& shared) {
  Turn<kStages> turn;
  int keys_parity = 1;
  for (Place at = Place::start(0, p); at.exists();) {
    await_phase(&shared.keys_empty, keys_parity);
    keys_parity ^= 1;
    fetch_keys(maps, p, shared, at);
    for (int left = at.steps(p); left > 0; --left) {
      await_phase(&shared.empty[turn.stage], turn.parity ^ 1);
      fetch_queries(maps, p, shared, at, turn.stage);
      turn.advance();
      at.advance(p);
    }
  }
}

/// Copies the tiles of a warpgroup's dscores to global memory. By one thread.
__device__ __forceinline__ void copy_dscores(const Problem& p, KeysShared& shared, int group) {
  Turn<2> turn;
  for (Place at = Place::start(0, p); at.exists(); at.advance(p), turn.advance()) {
    char* const to = p.dscores_of(at.sample_head(p), at.tile) + (2 * at.block + group) * kTileBytes;
    await_phase(&shared.dscores_full[group][turn.stage], turn.parity);
    store_bytes(to, shared.dscores[group][turn.stage], kTileBytes);
    await_stores_read();
    arrive(&shared.dscores_empty[group][turn.stage]);
  }
  await_stores();
}

/// A thread of a warpgroup, which has 64 keys of a unit. They are the rows of scores, of their gradients, and of the
/// gradients of its keys and values.
struct Worker {
  const Problem& p;
  KeysShared& shared;
  const int group, lane, warp_row;
  std::uint32_t weight[4][4];
  float score[32], dweight[32], dkey[64], dvalue[64];
  Place now;
  Turn<kStages> turn;  // of the tile
  Turn<2> buffer;      // of its dscores
  int keys_parity = 0;
  bool adds = false;  // dkey and dvalue have terms

  __device__ __forceinline__ Worker(const Problem& problem, KeysShared& memory)
      : p(problem),
        shared(memory),
        group(uniform(static_cast<int>(threadIdx.x) / 128)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp_row(static_cast<int>(threadIdx.x) % 128 / 32 * 16),
        now(Place::start(0, problem)) {}

  /// All units. Each has two tiles of queries at least.
  __device__ __forceinline__ void work() {
    while (now.exists()) {
      begin_unit();
      for (int left = now.steps(p); left > 2; --left) step<false>();
      step<true>();
      end_unit();
    }
  }

  /// dscores of the first tile.
  __device__ __forceinline__ void begin_unit() {
    await_phase(&shared.keys_full, keys_parity);
    keys_parity ^= 1;
    start_dweights(turn);
    start_scores(turn.stage);
    wgmma_wait<0>();
    settle(score);
    settle(dweight);
    exponentiate_scores();
    differentiate_scores();
    put_dscores();
    start_dweights(next());
    put_weights();
    adds = false;
  }

  /// From the dscores of a tile to its part of dv and dk, and to the dscores of the next tile, which are computed
  /// while the products run. The gradients of the weights of the tile after that start before these products end, so
  /// that the tensor cores have work all the time. kLast: there is no tile after that.
  template <bool kLast>
  __device__ __forceinline__ void step() {
    const int before = turn.stage;
    now.advance_in_unit(p);
    turn.advance();
    start_scores(turn.stage);
    wgmma_wait<0>();  // ptxas allows no other wait for products of the step before
    settle(score);
    settle(dweight);
    start_dvalues_dkeys(before, buffer.stage ^ 1);
    exponentiate_scores();
    differentiate_scores();
    put_dscores();
    if constexpr (kLast) {
      wgmma_wait<0>();
      settle(dkey);
      settle(dvalue);
    } else {
      start_dweights(next());
      wgmma_wait<1>();
    }
    release(&shared.empty[before]);
    put_weights();
  }
  __device__ __forceinline__ Turn<kStages> next() const {
    Turn<kStages> after = turn;
    after.advance();
    return after;
  }

  /// dv and dk.
  __device__ __forceinline__ void end_unit() {
    start_dvalues_dkeys(turn.stage, buffer.stage ^ 1);
    release(&shared.keys_empty);
    wgmma_wait<0>();
    settle(dkey);
    settle(dvalue);
    release(&shared.empty[turn.stage]);
    await_phase(&shared.dscores_empty[group][buffer.stage], buffer.parity ^ 1);
    char* const staging = shared.dscores[group][buffer.stage];
    const std::size_t row = now.row(p) + now.block * kKeys + group * kRows;
    const std::size_t at = row * p.dkeys_row + (now.key_head * p.parts + now.part) * kHead;
    put_rows(dkey, {p.scale, p.scale}, p.dkeys + at, p.dkeys_row, staging);
    put_rows(dvalue, {1.0f, 1.0f}, p.dvalues + at, p.dkeys_row, staging);
    now.advance(p);
    turn.advance();
  }

  /// One group, of a tile that has come.
  __device__ __forceinline__ void start_scores(int stage) {
    start_products(score, shared.keys[group], shared.queries[stage], kTileBytes);
  }
  /// One group, when the tile has come.
  __device__ __forceinline__ void start_dweights(const Turn<kStages>& tile) {
    await_phase(&shared.full[tile.stage], tile.parity);
    start_products(dweight, shared.values[group], shared.douts[tile.stage], kTileBytes);
  }
  /// One group.
  __device__ __forceinline__ void start_dvalues_dkeys(int stage, int of_dscores) {
    const SwizzledOperand dscores(shared_address(shared.dscores[group][of_dscores]));
    const SwizzledOperand douts(shared_address(shared.douts[stage]), kTileBytes);
    const SwizzledOperand queries(shared_address(shared.queries[stage]), kTileBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_m64n128k16<true>(dvalue, weight[k], douts + kStepBytes * k, adds || k > 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_m64n128k16<true>(dkey, dscores + 32 * k, queries + kStepBytes * k, adds || k > 0);
    }
    wgmma_commit();
    adds = true;
  }

  /// Scores become weights.
  __device__ __forceinline__ void exponentiate_scores() {
    const float scale_log2 = p.scale * kLog2e;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 s = *reinterpret_cast<const float2*>(&shared.statistics[turn.stage][8 * n + 2 * (lane % 4)]);
      const float shift[2] = {-kLog2e * s.x, -kLog2e * s.y};
#pragma unroll
      for (int c = 0; c < 4; ++c) score[4 * n + c] = exp2_approximate(fmaf(score[4 * n + c], scale_log2, shift[c % 2]));
    }
    const int tiles_ahead = now.tile - 2 * now.block - group;
    if (tiles_ahead <= 0) mask(tiles_ahead * kRows + first_across());
  }
  /// `ahead`: this thread's first query less its first key.
  __device__ __forceinline__ void mask(int ahead) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (ahead + across(4 * n + c) < 0) score[4 * n + c] = 0.0f;
      }
    }
  }
  /// Gradients of the weights become those of the scores.
  __device__ __forceinline__ void differentiate_scores() {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 d = *reinterpret_cast<const float2*>(&shared.deltas[turn.stage][8 * n + 2 * (lane % 4)]);
#pragma unroll
      for (int c = 0; c < 4; ++c)
        dweight[4 * n + c] = score[4 * n + c] * (dweight[4 * n + c] - (c % 2 == 0 ? d.x : d.y));
    }
  }
  /// To shared memory, in bf16. Products that run may read the other buffer.
  __device__ __forceinline__ void put_dscores() {
    await_phase(&shared.dscores_empty[group][buffer.stage], buffer.parity ^ 1);
    const std::uint32_t to = shared_address(shared.dscores[group][buffer.stage]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      std::uint32_t dscore[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) dscore[i] = pack_bf16(dweight[8 * k + 2 * i], dweight[8 * k + 2 * i + 1]);
      stmatrix_x4(chunk_at(to, warp_row + lane % 16, 2 * k + lane / 16), dscore);
    }
    fence_async_proxy();
    release(&shared.dscores_full[group][buffer.stage]);
  }
  /// In registers, in bf16, when no products of weights run. Then all warps of the group have put their dscores, and
  /// their products have read the other buffer.
  __device__ __forceinline__ void put_weights() {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int i = 0; i < 4; ++i) weight[k][i] = pack_bf16(score[8 * k + 2 * i], score[8 * k + 2 * i + 1]);
    }
    barrier_wait(1 + group, 128);
    buffer.advance();
  }
};

__global__ void __launch_bounds__(kThreadsAndFetching, 1)
    keys_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
#if DDP_WGMMA
  KeysShared& shared = *reinterpret_cast<KeysShared*>(dynamic_shared_memory());
  if (threadIdx.x == 0) init_barriers(shared);
  __syncthreads();
  if (threadIdx.x < kThreads) {
    take_registers<kTaken>();
    Worker(p, shared).work();
  } else {
    leave_registers<kLeft>();
    if (threadIdx.x == kThreads) fetch(maps, p, shared);
    if (threadIdx.x == kThreads + 32) copy_dscores(p, shared, 0);
    if (threadIdx.x == kThreads + 64) copy_dscores(p, shared, 1);
  }
#endif
}

struct alignas(1024) QueriesShared {
  HeadTiles keys[kQueryStages];
  char dscores[kQueryStages][kWarpgroups][kTileBytes];
  char staging[kWarpgroups][kTileBytes];
  std::uint64_t full[kQueryStages];
  std::uint64_t empty[kQueryStages];
};

/// A block computes dq of 128 queries of a head, 64 by each warpgroup, in steps of 64 keys.
struct Queries {
  int pair;  // of tiles of queries
  int sample, head;

  /// Those with the most keys first.
  __device__ explicit Queries(const Problem& p) {
    const int heads = p.batch * p.heads, index = static_cast<int>(blockIdx.x);
    pair = p.blocks() - 1 - index / heads;
    sample = index % heads / p.heads;
    head = index % heads % p.heads;
  }
  __device__ int steps() const { return 2 * pair + 2; }
};

__device__ __forceinline__ void fetch_step(const Maps& maps, const Problem& p, QueriesShared& shared, const Queries& q,
                                           int step, int stage) {
  std::uint64_t* const full = &shared.full[stage];
  const int column = p.width() + q.head / p.queries() * kHead;
  expect_bytes(full, (kTiles + kWarpgroups) * kTileBytes);
  load_rows(shared.keys[stage], maps.qkv, column, q.sample * p.sequence + step * kRows, full);
  for (int i = 0; i < kWarpgroups; ++i) {
    const char* const from = p.dscores_of(q.sample * p.heads + q.head, 2 * q.pair + i) + step * kTileBytes;
    load_bytes(shared.dscores[stage][i], from, kTileBytes, full);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    queries_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
#if DDP_WGMMA
  QueriesShared& shared = *reinterpret_cast<QueriesShared*>(dynamic_shared_memory());
  const Queries q(p);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kQueryStages; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kWarps);
    }
    publish_barriers();
    for (int i = 0; i < kQueryStages - 1 && i < q.steps(); ++i) fetch_step(maps, p, shared, q, i, i);
  }
  __syncthreads();
  const int group = uniform(static_cast<int>(threadIdx.x) / 128);
  float dquery[64];
  Turn<kQueryStages> turn, next{kQueryStages - 1, 0};
  for (int step = 0; step < q.steps(); ++step) {
    await_phase(&shared.full[turn.stage], turn.parity);
    const SwizzledOperand rows(shared_address(shared.dscores[turn.stage][group]));
    const SwizzledOperand keys(shared_address(shared.keys[turn.stage]), kTileBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_m64n128k16<true, true>(dquery, rows + kStepBytes * k, keys + kStepBytes * k, step > 0 || k > 0);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && threadIdx.x % 32 == 0) arrive(&shared.empty[turn.stage == 0 ? kQueryStages - 1 : turn.stage - 1]);
    if (threadIdx.x == 0 && step + kQueryStages - 1 < q.steps()) {
      await_phase(&shared.empty[next.stage], next.parity ^ 1);
      fetch_step(maps, p, shared, q, step + kQueryStages - 1, next.stage);
    }
    __syncwarp();
    turn.advance();
    next.advance();
  }
  wgmma_wait<0>();
  settle(dquery);
  const std::size_t row = q.sample * p.sequence + (2 * q.pair + group) * kRows;
  put_rows(dquery, {p.scale, p.scale}, p.dqkv + row * p.columns() + q.head * kHead, p.columns(), shared.staging[group]);
#endif
}

constexpr int kDeltaThreads = 256;
constexpr int kPacksOfHead = kHead / kPack;
constexpr int kPacksOfThread = 4;
constexpr int kDeltasOfBlock = kDeltaThreads * kPacksOfThread / kPacksOfHead;

/// deltas = d_output * out, summed over each head: half a warp per head of a row. The number of rows is a multiple of
/// kDeltasOfBlock.
__global__ void __launch_bounds__(kDeltaThreads)
    deltas_kernel(const bf16* out, const bf16* d_output, float* deltas, const Problem p) {
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kDeltaThreads * kPacksOfThread + threadIdx.x;
  uint4 x[kPacksOfThread], y[kPacksOfThread];
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i) {
    x[i] = load_once(reinterpret_cast<const uint4*>(out) + first + i * kDeltaThreads);
    y[i] = load_once(reinterpret_cast<const uint4*>(d_output) + first + i * kDeltaThreads);
  }
#pragma unroll
  for (int i = 0; i < kPacksOfThread; ++i) {
    const std::uint32_t a[4] = {x[i].x, x[i].y, x[i].z, x[i].w}, b[4] = {y[i].x, y[i].y, y[i].z, y[i].w};
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 u = unpack_bf16(a[k]), v = unpack_bf16(b[k]);
      sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
    }
#pragma unroll
    for (int lanes = 1; lanes < kPacksOfHead; lanes *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lanes);
    if (threadIdx.x % kPacksOfHead != 0) continue;
    const auto item = static_cast<std::uint32_t>((first + i * kDeltaThreads) / kPacksOfHead);  // of [rows, heads]
    const std::uint32_t row = item / p.heads, head = item % p.heads;
    const std::uint32_t sample = row / p.sequence, position = row % p.sequence;
    deltas[(static_cast<std::size_t>(sample) * p.heads + head) * p.sequence + position] = sum;
  }
}

constexpr int kSumThreads = 256;

/// Sums of the parts of dk and dv, in their order, to their places in dqkv: a thread per pack of the sums.
__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(const Problem p, std::uint32_t packs) {
  const std::uint32_t index = static_cast<std::uint32_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (index >= packs) return;
  const std::uint32_t of_row = 2 * p.key_heads * kPacksOfHead;
  const std::size_t row = index / of_row;
  const std::uint32_t head = index % of_row / kPacksOfHead, column = index % kPacksOfHead * kPack;
  const bf16* const first = p.dkeys + row * p.dkeys_row + head * p.parts * kHead + column;
  float sum[kPack] = {};
  for (int i = 0; i < p.parts; ++i) {
    float part[kPack];
    load<kPack>(first + i * kHead, part);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum[k] += part[k];
  }
  store<kPack>(sum, p.dqkv + row * p.columns() + p.width() + head * kHead + column);
}

}  // namespace ddptrain::cuda::attention_wgmma_128
