#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/attention/attention_head.cuh"
#include "runtime/ops/cuda/attention/attention_sizes.h"
#include "runtime/ops/cuda/ptx/bulk_copy.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/ptx/wgmma.cuh"

/// The kernels of wgmma_attention_backward(): the part that tests also run on the CPU (tests/emulated). If heads share
/// keys, each head writes its part of dk and dv, and a second kernel sums these parts.

namespace ddptrain::cuda::attention_wgmma {

using attention::kLog2e;
using bf16 = __nv_bfloat16;

constexpr int kThreads = 128 * kWarpgroups;
constexpr int kStages = 3;
constexpr int kTileBytes = kRows * kHead * 2;
constexpr int kStepBytes = 16 * kHead * 2;                // 16 rows of a tile
constexpr int kSumBytes = kRows * kHead * sizeof(float);  // of a tile in f32
constexpr int kSumPacks = kSumBytes / kWarpgroups / 16;   // of a warpgroup

struct Problem {
  const float* statistics;
  float4* partial_dq;
  bf16* dqkv;
  bf16* dkeys;    // of the first head: in dqkv, or of the parts
  bf16* dvalues;  // the same
  int dkeys_row;  // elements from a row of them to the next
  int sequence, heads, key_heads, batch_heads;
  int resident;  // the last tiles of queries, whose partial sums of dq stay in shared memory
  float scale;

  __device__ int width() const { return heads * kHead; }
  __device__ int key_width() const { return key_heads * kHead; }
  __device__ int columns() const { return width() + 2 * key_width(); }  // of qkv
  __device__ int queries() const { return heads / key_heads; }          // that share a key
  __device__ int tiles() const { return sequence / kRows; }
};

/// A tile of queries and a block of keys of one head. A thread block takes one head after another; per head the
/// blocks of keys; per block of keys the tiles of queries from the diagonal on. They go up for one block and down
/// for the next one, so that L2 still has the tiles and the sums of dq that the next block begins with.
struct Place {
  int head, row, column;  // of all heads; its first row and column in the matrices
  int block, tile, step;  // step: to the next tile
  int left;               // tiles of the block, this one among them

  static __device__ __forceinline__ Place start(int head, const Problem& p) {
    return {head, head / p.heads * p.sequence, head % p.heads * kHead, 0, 0, 1, p.tiles()};
  }
  __device__ __forceinline__ bool exists(const Problem& p) const { return head < p.batch_heads; }
  __device__ __forceinline__ bool is_first_tile(const Problem& p) const { return left + 2 * block == p.tiles(); }
  /// Whether the tile meets the diagonal.
  __device__ __forceinline__ bool is_last_block() const { return tile < 2 * block + 2; }
  __device__ __forceinline__ void leave_block(const Problem& p) {
    ++block;
    left = p.tiles() - 2 * block;
    tile = step > 0 ? p.tiles() - 1 : 2 * block;
    step = -step;
    if (left == 0) *this = start(head + gridDim.x, p);
  }
  __device__ __forceinline__ void advance(const Problem& p) {
    tile += step;
    if (--left == 0) leave_block(p);
  }
};

struct alignas(1024) Shared {
  char keys[2][kWarpgroups][kTileBytes];
  char values[kWarpgroups][kTileBytes];
  char queries[kStages][kTileBytes];
  char douts[kStages][kTileBytes];
  char outs[kStages][kTileBytes];  // with the first block of keys only
  char dscores[2][kWarpgroups][kTileBytes];
  float statistics[kStages][kRows];
  std::uint64_t tile_full[kStages];
  std::uint64_t block_full;
  Place next_tile, next_block;  // to be fetched, by the one thread that does so
};

struct Maps {
  CUtensorMap qkv, out, d_output;
};

/// Starts copying the next tile of queries. One thread fetches for all.
__device__ __forceinline__ void fetch_tile(const Maps& maps, const Problem& p, Shared& shared, int stage) {
  Place tile = shared.next_tile;
  if (!tile.exists(p)) return;
  std::uint64_t* full = &shared.tile_full[stage];
  const bool has_out = tile.block == 0;
  const int row = tile.row + tile.tile * kRows;
  const CachePolicy policy = tile.is_last_block() ? CachePolicy::evict_first : CachePolicy::normal;
  expect_bytes(full, (has_out ? 3 : 2) * kTileBytes + kRows * 4);
  load_tile(shared.queries[stage], maps.qkv, tile.column, row, full, policy);
  load_tile(shared.douts[stage], maps.d_output, tile.column, row, full, policy);
  if (has_out) load_tile(shared.outs[stage], maps.out, tile.column, row, full, CachePolicy::evict_first);
  load_bytes(shared.statistics[stage],
             p.statistics + static_cast<std::size_t>(tile.head) * p.sequence + tile.tile * kRows, kRows * 4, full);
  tile.advance(p);
  shared.next_tile = tile;
}
/// Starts copying the next block of keys and values.
__device__ __forceinline__ void fetch_block(const Maps& maps, const Problem& p, Shared& shared, int buffer) {
  Place block = shared.next_block;
  if (!block.exists(p)) return;
  expect_bytes(&shared.block_full, 2 * kWarpgroups * kTileBytes);
  const int key = p.width() + block.column / kHead / p.queries() * kHead;
  for (int i = 0; i < kWarpgroups; ++i) {
    const int row = block.row + block.block * kKeys + i * kRows;
    load_tile(shared.keys[buffer][i], maps.qkv, key, row, &shared.block_full, CachePolicy::evict_first);
    load_tile(shared.values[i], maps.qkv, key + p.key_width(), row, &shared.block_full, CachePolicy::evict_first);
  }
  block.leave_block(p);
  shared.next_block = block;
}

__device__ __forceinline__ void start_fetching(const Maps& maps, const Problem& p, Shared& shared) {
  for (auto& barrier : shared.tile_full) init_barrier(&barrier, 1);
  init_barrier(&shared.block_full, 1);
  publish_barriers();
  shared.next_tile = shared.next_block = Place::start(blockIdx.x, p);
  fetch_block(maps, p, shared, 0);
  for (int stage = 0; stage < kStages - 1; ++stage) fetch_tile(maps, p, shared, stage);
}

/// A thread of a warpgroup, which owns 64 keys of a block: scores, their gradients, and the gradients of its keys and
/// values have the keys as rows; dq has the queries of a tile as rows, and half of a head as columns.
struct Worker {
  const Maps& maps;
  const Problem& p;
  Shared& shared;
  float* const deltas;
  float4* const resident;
  int group, thread, g, q, warp_row;
  std::uint32_t chunk[4];  // where this lane's row of 8 x 8 matrices lies in a tile
  std::uint32_t key[4][4], value[4][4], weight[4][4];
  float score[32], dweight[32], dkey[32], dvalue[32], dquery[16];
  Place now;
  int stage = 0, stage_parity = 0;   // of the tile
  int buffer = 0, block_parity = 0;  // of the block of keys
  int turn = 0;                      // which dscores the tile has

  __device__ __forceinline__ Worker(const Maps& tensors, const Problem& problem, Shared& memory)
      : maps(tensors),
        p(problem),
        shared(memory),
        deltas(reinterpret_cast<float*>(&memory + 1)),
        resident(reinterpret_cast<float4*>(deltas + problem.sequence)),
        group(uniform(threadIdx.x / 128)),
        thread(threadIdx.x % 128),
        g(thread % 32 / 4),
        q(thread % 4),
        warp_row(thread / 32 * 16),
        now(Place::start(blockIdx.x, problem)) {
    const int lane = thread % 32, row = warp_row + lane % 16;
#pragma unroll
    for (int k = 0; k < 4; ++k) chunk[k] = row * 128 + ((2 * k + lane / 16) ^ (row % 8)) * 16;
  }

  __device__ __forceinline__ bool goes_on() const { return now.exists(p); }

  /// The weights of the first tile and their gradients.
  __device__ __forceinline__ void begin() {
    await_phase(&shared.tile_full[0], 0);
    put_deltas(0, 0);
    __syncthreads();
    await_phase(&shared.block_full, 0);
    fetch_fragments();
    start_scores(0);
    start_dweights(0);
    wgmma_wait<0>();
    settle(score);
    settle(dweight);
    weigh(now, 0);
  }

  /// From the weights of a tile and their gradients to its part of dq, dk and dv, and to the weights of the next tile.
  /// The products of the next tile overlap with the work of other units on this tile.
  __device__ __forceinline__ void step() {
    Place next = now;
    next.advance(p);
    const bool block_ends = now.left == 1;
    const int next_stage = stage + 1 == kStages ? 0 : stage + 1;
    const int next_parity = stage_parity ^ (next_stage == 0 ? 1 : 0);
    const int keys = buffer;
    std::uint32_t dscore[4][4];
    put_dscores(dscore);
    const bool continues = continues_sum(now);
    if (continues) fetch_sum(now.tile);
    start_dvalues_dkeys(stage, dscore, !now.is_first_tile(p));
    if (block_ends) enter_block(next);
    if (next.exists(p)) await_phase(&shared.tile_full[next_stage], next_parity);
    start_scores(next_stage);
    if (next.exists(p) && next.block == 0) put_deltas(next.tile, next_stage);

    barrier_wait(1, kThreads);  // dscores are there, and the tile before this one is done with
    if (threadIdx.x == 0) {
      fetch_tile(maps, p, shared, stage == 0 ? kStages - 1 : stage - 1);
      if (now.is_first_tile(p)) fetch_block(maps, p, shared, keys ^ 1);
    }
    __syncwarp();
    start_dqueries(turn, keys, continues);
    start_dweights(next_stage);

    wgmma_wait<2>();
    settle(score);
    settle(dkey);
    settle(dvalue);
    weigh(next, next_stage);
    if (block_ends) put_dkeys_dvalues(now);
    wgmma_wait<1>();
    settle(dquery);
    put_dqueries(now);
    wgmma_wait<0>();
    settle(dweight);
    now = next;
    turn ^= 1;
    stage = next_stage;
    stage_parity = next_parity;
  }

  __device__ __forceinline__ void enter_block(const Place& next) {
    buffer ^= 1;
    block_parity ^= 1;
    if (!next.exists(p)) return;
    await_phase(&shared.block_full, block_parity);
    fetch_fragments();
  }

  __device__ __forceinline__ void fetch_fragments() {
    const std::uint32_t keys = shared_address(shared.keys[buffer][group]);
    const std::uint32_t values = shared_address(shared.values[group]);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      ldmatrix_x4(key[k], keys + chunk[k]);
      ldmatrix_x4(value[k], values + chunk[k]);
    }
  }

  /// deltas = d_output * out, summed over the head.
  __device__ __forceinline__ void put_deltas(int tile, int stage) {
    const int row = threadIdx.x / 4, part = threadIdx.x % 4;
    float sum = 0.0f;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int at = row * 128 + ((2 * part + c) ^ (row % 8)) * 16;
      const uint4 x = *reinterpret_cast<const uint4*>(shared.douts[stage] + at);
      const uint4 y = *reinterpret_cast<const uint4*>(shared.outs[stage] + at);
      const std::uint32_t a[4] = {x.x, x.y, x.z, x.w}, b[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 u = unpack_bf16(a[k]), v = unpack_bf16(b[k]);
        sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
      }
    }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (part == 0) deltas[tile * kRows + row] = sum;
  }

  __device__ __forceinline__ void start_scores(int stage) {
    const SwizzledOperand queries(shared_address(shared.queries[stage]));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_m64n64k16<false>(score, key[k], queries + 32 * k, k > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void start_dweights(int stage) {
    const SwizzledOperand douts(shared_address(shared.douts[stage]));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_m64n64k16<false>(dweight, value[k], douts + 32 * k, k > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void start_dvalues_dkeys(int stage, const std::uint32_t (&dscore)[4][4], bool add) {
    const SwizzledOperand douts(shared_address(shared.douts[stage])), queries(shared_address(shared.queries[stage]));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_m64n64k16<true>(dvalue, weight[k], douts + kStepBytes * k, add || k > 0);
#pragma unroll
    for (int k = 0; k < 4; ++k) wgmma_m64n64k16<true>(dkey, dscore[k], queries + kStepBytes * k, add || k > 0);
    wgmma_commit();
  }
  __device__ __forceinline__ void start_dqueries(int dscores, int buffer, bool add) {
    const SwizzledOperand rows(shared_address(shared.dscores[dscores]));
    const SwizzledOperand keys(shared_address(shared.keys[buffer]) + group * kHead);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      wgmma_m64n32k16_transposed(dquery, rows + kStepBytes * k, keys + kStepBytes * k, add || k > 0);
    }
    wgmma_commit();
  }

  /// Scores become weights.
  __device__ __forceinline__ void weigh(const Place& at, int stage) {
    const float scale_log2 = p.scale * kLog2e;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 s = *reinterpret_cast<const float2*>(&shared.statistics[stage][8 * n + 2 * q]);
      const float shift[2] = {-kLog2e * s.x, -kLog2e * s.y};
#pragma unroll
      for (int c = 0; c < 4; ++c) score[4 * n + c] = exp2_approximate(fmaf(score[4 * n + c], scale_log2, shift[c % 2]));
    }
    if (at.is_last_block()) mask((at.tile - 2 * at.block - group) * kRows - warp_row - g + 2 * q);
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      weight[n / 2][n % 2 * 2] = pack_bf16(score[4 * n], score[4 * n + 1]);
      weight[n / 2][n % 2 * 2 + 1] = pack_bf16(score[4 * n + 2], score[4 * n + 3]);
    }
  }
  /// `ahead`: this thread's first query less its first key.
  __device__ __forceinline__ void mask(int ahead) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (ahead + 8 * n + c % 2 - c / 2 * 8 < 0) score[4 * n + c] = 0.0f;
      }
    }
  }
  /// Gradients of the scores, as operand in registers and in shared memory.
  __device__ __forceinline__ void put_dscores(std::uint32_t (&dscore)[4][4]) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 d = *reinterpret_cast<const float2*>(deltas + now.tile * kRows + 8 * n + 2 * q);
      const float* w = score + 4 * n;
      const float* dw = dweight + 4 * n;
      dscore[n / 2][n % 2 * 2] = pack_bf16(w[0] * (dw[0] - d.x), w[1] * (dw[1] - d.y));
      dscore[n / 2][n % 2 * 2 + 1] = pack_bf16(w[2] * (dw[2] - d.x), w[3] * (dw[3] - d.y));
    }
    const std::uint32_t to = shared_address(shared.dscores[turn][group]);
#pragma unroll
    for (int k = 0; k < 4; ++k) stmatrix_x4(to + chunk[k], dscore[k]);
    fence_async_proxy();
  }

  __device__ __forceinline__ bool is_resident(int tile) const { return tile >= p.tiles() - p.resident; }
  __device__ __forceinline__ float4* resident_sum(int tile) const {
    return resident + ((tile - (p.tiles() - p.resident)) * kWarpgroups + group) * kSumPacks + thread;
  }
  __device__ __forceinline__ float4* partial_sum(int tile) const {
    return p.partial_dq +
           ((static_cast<std::size_t>(blockIdx.x) * p.tiles() + tile) * kWarpgroups + group) * kSumPacks + thread;
  }
  /// Whether dq of the tile goes on from an earlier sum; else it is added to that sum, if there is one.
  __device__ __forceinline__ bool continues_sum(const Place& at) const {
    return at.block > 0 && (at.is_last_block() || is_resident(at.tile));
  }
  __device__ __forceinline__ void fetch_sum(int tile) {
    const bool here = is_resident(tile);
    const float4* from = here ? nullptr : partial_sum(tile);
    const float4* near = resident_sum(tile);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float4 sum = here ? near[128 * n] : __ldcg(from + 128 * n);
      dquery[4 * n] = sum.x;
      dquery[4 * n + 1] = sum.y;
      dquery[4 * n + 2] = sum.z;
      dquery[4 * n + 3] = sum.w;
    }
  }
  __device__ __forceinline__ float4 pack_of_sum(int n) const {
    return make_float4(dquery[4 * n], dquery[4 * n + 1], dquery[4 * n + 2], dquery[4 * n + 3]);
  }
  __device__ __forceinline__ void put_dqueries(const Place& at) {
    if (at.is_last_block()) {
      const std::size_t row = at.row + at.tile * kRows;
      put_rows(dquery, p.scale, p.dqkv + row * p.columns() + at.column + group * 32, p.columns());
    } else if (is_resident(at.tile)) {
      float4* to = resident_sum(at.tile);
#pragma unroll
      for (int n = 0; n < 4; ++n) to[128 * n] = pack_of_sum(n);
    } else if (at.block == 0) {
      float4* to = partial_sum(at.tile);
#pragma unroll
      for (int n = 0; n < 4; ++n) __stcg(to + 128 * n, pack_of_sum(n));
    } else {
      float4* to = partial_sum(at.tile);
#pragma unroll
      for (int n = 0; n < 4; ++n) add_to_global(to + 128 * n, pack_of_sum(n));
    }
  }
  __device__ __forceinline__ void put_dkeys_dvalues(const Place& at) {
    const std::size_t row = at.row + at.block * kKeys + group * kRows;
    put_rows(dkey, p.scale, p.dkeys + row * p.dkeys_row + at.column, p.dkeys_row);
    put_rows(dvalue, 1.0f, p.dvalues + row * p.dkeys_row + at.column, p.dkeys_row);
  }

  /// Writes 64 rows of kCount / 32 of a head each, times `factor`, by way of the shared memory of the next tile's
  /// dscores; a warp does so for its own 16 rows. They lie `stride` elements apart.
  template <int kCount>
  __device__ __forceinline__ void put_rows(const float (&d)[kCount], float factor, bf16* to, int stride) {
    constexpr int kChunks = kCount / 4;  // of 16 bytes, in a row
    char* const rows = shared.dscores[turn ^ 1][group];
#pragma unroll
    for (int k = 0; k < kChunks / 2; ++k) {
      const float* x = d + 8 * k;
      const std::uint32_t pairs[4] = {pack_bf16(x[0] * factor, x[1] * factor), pack_bf16(x[2] * factor, x[3] * factor),
                                      pack_bf16(x[4] * factor, x[5] * factor), pack_bf16(x[6] * factor, x[7] * factor)};
      stmatrix_x4(shared_address(rows) + chunk[k], pairs);
    }
    __syncwarp();
    const int lane = thread % 32, c = lane % kChunks;
#pragma unroll
    for (int i = 0; i < kChunks / 2; ++i) {
      const int row = warp_row + (32 * i + lane) / kChunks;
      __stcs(reinterpret_cast<uint4*>(to + static_cast<std::size_t>(row) * stride + 8 * c),
             *reinterpret_cast<const uint4*>(rows + row * 128 + (c ^ (row % 8)) * 16));
    }
    __syncwarp();
  }
};

__global__ void __launch_bounds__(kThreads, 1)
    backward_kernel(const __grid_constant__ Maps maps, const __grid_constant__ Problem p) {
#if DDP_WGMMA
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared_memory());
  if (threadIdx.x == 0) start_fetching(maps, p, shared);
  __syncthreads();
  Worker worker(maps, p, shared);
  worker.begin();
  while (worker.goes_on()) worker.step();
#endif
}

constexpr int kSumThreads = 256;
constexpr int kPacksOfHead = kHead / kPack;

/// Sums of the parts of dk and dv, which are of the heads of queries in their order, to their places in dqkv: a thread
/// per pack of the sums.
__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(const Problem p, std::uint32_t packs) {
  const std::uint32_t index = static_cast<std::uint32_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  if (index >= packs) return;
  const std::uint32_t of_row = 2 * p.key_heads * kPacksOfHead;
  const std::size_t row = index / of_row;
  const std::uint32_t head = index % of_row / kPacksOfHead, column = index % kPacksOfHead * kPack;
  const bf16* const first = p.dkeys + row * p.dkeys_row + head * p.queries() * kHead + column;
  float sum[kPack] = {};
  for (int i = 0; i < p.queries(); ++i) {
    float part[kPack];
    load<kPack>(first + i * kHead, part);
#pragma unroll
    for (int k = 0; k < kPack; ++k) sum[k] += part[k];
  }
  store<kPack>(sum, p.dqkv + row * p.columns() + p.width() + head * kHead + column);
}

}  // namespace ddptrain::cuda::attention_wgmma
