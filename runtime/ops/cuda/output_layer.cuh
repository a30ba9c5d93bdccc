#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>
#include <numbers>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/bulk_copy.cuh"
#include "runtime/ops/cuda/intrinsics.cuh"
#include "runtime/ops/cuda/metric_partials.h"
#include "runtime/ops/cuda/mma.cuh"
#include "runtime/ops/cuda/predictions.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/cuda/wgmma.cuh"

/// The kernels of fused_output_layer(): the part that tests also run on the CPU (tests/emulated).
///
/// logits_kernel writes the logits and, on the way, what the softmax must know of each row; rows_kernel puts that
/// together. input_gradient_kernel reads the logits once: it makes them gradients, writes these back and multiplies
/// them by the weights. sum_parts_kernel sums its parts of dx.
///
/// Clusters of two thread blocks work on one tile of rows after the other, 64 columns of logits (a unit) at a time.
/// Both blocks read the same weights, half each, so that these leave L2 once for both.

namespace ddptrain::cuda::output_layer {

using bf16 = __nv_bfloat16;

constexpr int kWidth = 256;
constexpr int kUnit = 64;    // columns of logits
constexpr int kCluster = 2;  // thread blocks
constexpr int kWarpgroup = 128;
constexpr int kSquareBytes = 64 * 64 * 2;
constexpr int kStripBytes = kWidth / 64 * kSquareBytes;  // 64 rows of x or of the weights
constexpr int kStepBytes = 16 * 64 * 2;                  // 16 rows of a square
constexpr float kLog2e = std::numbers::log2e_v<float>;

constexpr int kLogitsGroups = 3, kGradientGroups = 2;  // warpgroups that multiply, with 64 rows each
constexpr int kLogitsTile = kCluster * kLogitsGroups * 64, kGradientTile = kCluster * kGradientGroups * 64;  // rows

/// Of the logits of a row in some units.
struct RowPart {
  float largest, total;  // the latter: the sum of exp(logit - largest)
  int unit;              // the first that has the largest
};
__device__ __forceinline__ RowPart together(const RowPart& a, const RowPart& b) {
  const float largest = fmaxf(a.largest, b.largest), base = largest == -INFINITY ? 0.0f : largest;
  const float total =
      a.total * exp2_approximate(kLog2e * (a.largest - base)) + b.total * exp2_approximate(kLog2e * (b.largest - base));
  const bool is_of_b = b.largest > a.largest || (b.largest == a.largest && b.unit < a.unit);
  return {largest, total, is_of_b ? b.unit : a.unit};
}
__device__ __forceinline__ RowPart other_lane(const RowPart& mine, int lanes) {
  return {__shfl_xor_sync(kAllLanes, mine.largest, lanes), __shfl_xor_sync(kAllLanes, mine.total, lanes),
          __shfl_xor_sync(kAllLanes, mine.unit, lanes)};
}
/// dlogit = exp2(log2(e) logit + shift), less `scale` at the target.
struct alignas(16) RowGradient {
  float shift, scale;
  int target;
};

/// The units of one tile of rows after the other, in even shares.
struct Shares {
  int tiles, units, workers;  // no more workers than units in all

  __device__ __forceinline__ std::int64_t all() const { return static_cast<std::int64_t>(tiles) * units; }
  __device__ __forceinline__ int begin(int worker) const { return static_cast<int>(all() * worker / workers); }
  __device__ __forceinline__ int owner(int unit) const {
    return static_cast<int>(((static_cast<std::int64_t>(unit) + 1) * workers - 1) / all());
  }
  __device__ __forceinline__ int first_owner(int tile) const { return owner(tile * units); }
  __device__ __forceinline__ int last_owner(int tile) const { return owner(tile * units + units - 1); }
};
/// Where a worker leaves its part of a tile.
__device__ __forceinline__ int part_of(int worker, int tile) { return worker + tile; }

/// What a cluster works on, one of two thread blocks in it.
struct Share {
  int worker, rank;
  int at, end;  // units of all tiles

  explicit __device__ __forceinline__ Share(const Shares& shares)
      : worker(blockIdx.x / kCluster),
        rank(blockIdx.x % kCluster),
        at(shares.begin(worker)),
        end(shares.begin(worker + 1)) {}
};
/// Units [first, last) of a tile, which a worker takes at a time.
struct Segment {
  int tile, first, last;

  __device__ __forceinline__ Segment(const Shares& shares, int at, int end)
      : tile(at / shares.units), first(at - tile * shares.units), last(min(shares.units, first + end - at)) {}
  __device__ __forceinline__ int size() const { return last - first; }
};

struct Problem {
  Shares logits_shares, gradient_shares;
  Predictions predictions;
  int rows, vocabulary;
  float gradient_scale;
  const bf16* logits;          // [rows][units * kUnit]
  RowPart* row_parts;          // [parts of the logits' shares][kLogitsTile]
  RowGradient* row_gradients;  // [rows]
  float* dx_parts;             // [parts of the gradients' shares][kGradientTile][kWidth]
  MetricPartial* metrics;      // one per block of rows_kernel
};

/// Stages of shared memory that are filled and used in turn.
template <int kStages>
struct Ring {
  int stage = 0, parity = 0;
  bool is_used = false;  // whether the stage was used before

  __device__ __forceinline__ int previous() const { return stage >= 1 ? stage - 1 : kStages - 1; }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
      is_used = true;
    }
  }
  /// In the thread that fills stages: until the stage is free.
  __device__ __forceinline__ void await_empty(std::uint64_t (&empty)[kStages]) const {
    if (is_used) await_phase(&empty[stage], parity ^ 1);
  }
};

/// Starts copying this block's part of 64 rows of weights to all blocks of the cluster.
__device__ __forceinline__ void fetch_part(char* strip, const CUtensorMap& weights, int rank, int unit,
                                           std::uint64_t* full) {
  constexpr int kCount = kWidth / 64 / kCluster;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int square = kCount * rank + i;
    load_tile_for_all<kCluster>(strip + square * kSquareBytes, weights, 64 * square, unit * kUnit, full,
                                CachePolicy::normal);
  }
}
/// Called by a warp that no longer reads what it shares with the other blocks.
__device__ __forceinline__ void release_to_all(std::uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    for (int block = 0; block < kCluster; ++block) arrive_in_cluster(empty, block);
  }
}
__device__ __forceinline__ void release(std::uint64_t* empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive(empty);
}

/// A thread's place in its warpgroup and in the fragments of wgmma.cuh.
struct Place {
  int group, warp_row, g, q;

  __device__ __forceinline__ Place()
      : group(uniform(threadIdx.x / kWarpgroup)),
        warp_row(threadIdx.x % kWarpgroup / 32 * 16),
        g(threadIdx.x % 32 / 4),
        q(threadIdx.x % 4) {}
};

// Logits

constexpr int kLogitsStages = 5;
constexpr int kLogitsThreads = (kLogitsGroups + 1) * kWarpgroup;  // the last warpgroup fetches

struct alignas(1024) LogitsShared {
  char strips[kLogitsStages][kStripBytes];
  char logits[2][kLogitsGroups][kSquareBytes];
  std::uint64_t full[kLogitsStages], empty[kLogitsStages];
};
struct LogitsMaps {
  CUtensorMap x, weights, logits;
};

/// The thread that fetches for its block: the rows of x, then the weights of one unit after the other.
struct LogitsFetcher {
  const LogitsMaps& maps;
  const Shares& shares;
  LogitsShared& shared;
  Ring<kLogitsStages> ring;

  __device__ __forceinline__ void run(Share share) {
    while (share.at < share.end) {
      const Segment segment(shares, share.at, share.end);
      const int row = segment.tile * kLogitsTile + share.rank * kLogitsGroups * 64;
      for (int group = 0; group < kLogitsGroups; ++group) fetch_x(row + group * 64);
      for (int unit = segment.first; unit < segment.last; ++unit) {
        expect();
        fetch_part(shared.strips[ring.stage], maps.weights, share.rank, unit, &shared.full[ring.stage]);
        ring.advance();
      }
      share.at += segment.size();
    }
  }
  __device__ __forceinline__ void expect() {
    ring.await_empty(shared.empty);
    expect_bytes(&shared.full[ring.stage], kStripBytes);
  }
  __device__ __forceinline__ void fetch_x(int row) {
    expect();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_tile(shared.strips[ring.stage] + i * kSquareBytes, maps.x, 64 * i, row, &shared.full[ring.stage],
                CachePolicy::normal);
    }
    ring.advance();
  }
};

/// A warpgroup has 64 rows of x in registers.
struct LogitsWorker : Place {
  const LogitsMaps& maps;
  const Problem& p;
  LogitsShared& shared;
  std::uint32_t chunk[4];  // where this lane's row of 8 x 8 matrices lies in a square
  std::uint32_t x[16][4];
  float logit[32];
  RowPart part[2];  // of the rows g and g + 8, from this thread's columns
  Ring<kLogitsStages> ring;
  int side = 0;  // of shared.logits

  __device__ __forceinline__ LogitsWorker(const LogitsMaps& tensors, const Problem& problem, LogitsShared& memory)
      : maps(tensors), p(problem), shared(memory) {
    const int lane = threadIdx.x % 32, row = warp_row + lane % 16;
#pragma unroll
    for (int k = 0; k < 4; ++k) chunk[k] = row * 128 + ((2 * k + lane / 16) ^ (row % 8)) * 16;
  }

  __device__ __forceinline__ void run(Share share) {
    while (share.at < share.end) {
      const Segment segment(p.logits_shares, share.at, share.end);
      fetch_rows();
      part[0] = part[1] = {-INFINITY, 0.0f, 0};
      const int row = segment.tile * kLogitsTile + (share.rank * kLogitsGroups + group) * 64 + warp_row;
      for (int unit = segment.first; unit < segment.last; ++unit) {
        await_phase(&shared.full[ring.stage], ring.parity);
        multiply();
        release_to_all(&shared.empty[ring.stage]);
        ring.advance();
        take(unit, row);
      }
      put_parts(part_of(share.worker, segment.tile), row - segment.tile * kLogitsTile);
      share.at += segment.size();
    }
  }

  __device__ __forceinline__ void fetch_rows() {
#pragma unroll 1
    for (int strip = 0; strip < kLogitsGroups; ++strip) {
      await_phase(&shared.full[ring.stage], ring.parity);
      if (strip == group) {
        const std::uint32_t from = shared_address(shared.strips[ring.stage]);
#pragma unroll
        for (int k = 0; k < 16; ++k) ldmatrix_x4(x[k], from + k / 4 * kSquareBytes + chunk[k % 4]);
      }
      release_to_all(&shared.empty[ring.stage]);
      ring.advance();
    }
  }

  __device__ __forceinline__ void multiply() {
    const SwizzledOperand weights(shared_address(shared.strips[ring.stage]));
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 16; ++k) {
      wgmma_m64n64k16<false>(logit, x[k], weights + (k / 4 * kSquareBytes + k % 4 * 32), k > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    settle(logit);
  }

  /// Writes the logits, and learns what the softmax must know of them.
  __device__ __forceinline__ void take(int unit, int row) {
    if ((unit + 1) * kUnit > p.vocabulary) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        if (unit * kUnit + i / 4 * 8 + 2 * q + i % 2 >= p.vocabulary) logit[i] = -INFINITY;
      }
    }
    std::uint32_t pairs[8][2];  // of the rows g and g + 8
#pragma unroll
    for (int i = 0; i < 16; ++i) pairs[i / 2][i % 2] = pack_bf16(logit[2 * i], logit[2 * i + 1]);
    put(unit, row, pairs);
    add<0>(unit, pairs);
    add<1>(unit, pairs);
  }

  __device__ __forceinline__ void put(int unit, int row, const std::uint32_t (&pairs)[8][2]) {
    const bool copies = threadIdx.x % 32 == 0;
    char* const square = shared.logits[side][group];
    side ^= 1;
    if (copies) await_stores_read<1>();
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const std::uint32_t four[4] = {pairs[2 * k][0], pairs[2 * k][1], pairs[2 * k + 1][0], pairs[2 * k + 1][1]};
      stmatrix_x4(shared_address(square) + chunk[k], four);
    }
    fence_async_proxy();
    __syncwarp();
    if (!copies) return;
    store_tile(square + warp_row * 128, maps.logits, unit * kUnit, row, CachePolicy::evict_first);
    end_stores();
  }

  /// The largest is that of the logits as they are written.
  template <int kHalf>
  __device__ __forceinline__ void add(int unit, const std::uint32_t (&pairs)[8][2]) {
    RowPart& row = part[kHalf];
    std::uint32_t most[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) most[i] = max_bf16(pairs[2 * i][kHalf], pairs[2 * i + 1][kHalf]);
    const float2 both = unpack_bf16(max_bf16(max_bf16(most[0], most[1]), max_bf16(most[2], most[3])));
    const float here = fmaxf(both.x, both.y), largest = fmaxf(row.largest, here);
    if (here > row.largest) row.unit = unit;
    const float shift = largest == -INFINITY ? 0.0f : -kLog2e * largest;
    float sums[2] = {row.total * exp2_approximate(fmaf(kLog2e, row.largest, shift)), 0.0f};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      sums[i % 2] += exp2_approximate(fmaf(kLog2e, logit[i / 2 * 4 + 2 * kHalf + i % 2], shift));
    }
    row.largest = largest;
    row.total = sums[0] + sums[1];
  }

  /// `row`: of the warp in the tile.
  __device__ __forceinline__ void put_parts(int index, int row) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      RowPart all = part[half];
#pragma unroll
      for (int lanes = 1; lanes <= 2; lanes *= 2) {
        all = together(all, other_lane(all, lanes));
      }
      if (q == 0) p.row_parts[index * kLogitsTile + row + g + 8 * half] = all;
    }
  }
};

/// A cluster per worker of the logits' shares.
DDP_CLUSTERS_OF(kCluster)
__global__ void __launch_bounds__(kLogitsThreads, 1)
    logits_kernel(const __grid_constant__ LogitsMaps maps, const __grid_constant__ Problem p) {
#if DDP_WGMMA
  LogitsShared& shared = *reinterpret_cast<LogitsShared*>(dynamic_shared_memory());
  const Share share(p.logits_shares);
  if (threadIdx.x == 0) {
    for (auto& barrier : shared.full) init_barrier(&barrier, 1);
    for (auto& barrier : shared.empty) init_barrier(&barrier, kCluster * kLogitsGroups * 4);
    publish_barriers();
  }
  meet_cluster();
  wait_for_predecessor();
  let_successor_start();
  if (threadIdx.x < kLogitsGroups * kWarpgroup) {
    take_registers<160>();
    LogitsWorker(maps, p, shared).run(share);
  } else {
    keep_registers<24>();
    if (threadIdx.x % kWarpgroup == 0) LogitsFetcher{maps, p.logits_shares, shared, {}}.run(share);
  }
  __syncwarp();
  meet_cluster();  // a block's memory outlives what the other does with it
#endif
}

// Rows

constexpr int kRowThreads = 256;
constexpr int kRowLanes = 8;  // that put a row together
constexpr int kRowsPerBlock = kRowThreads / kRowLanes;

/// Whether a column of the unit before the target's has its logit, too.
__device__ __forceinline__ bool is_earlier(const bf16* row, int target) {
  for (int column = target / kUnit * kUnit; column < target; ++column) {
    if (__bfloat162float(row[column]) == __bfloat162float(row[target])) return true;
  }
  return false;
}

/// A lane's share of the parts of a row.
__device__ __forceinline__ RowPart parts_of_row(const Problem& p, int row) {
  const int tile = row / kLogitsTile, last = p.logits_shares.last_owner(tile);
  RowPart all{-INFINITY, 0.0f, 0};
  for (int worker = p.logits_shares.first_owner(tile) + static_cast<int>(threadIdx.x % kRowLanes); worker <= last;
       worker += kRowLanes) {
    all = together(all, p.row_parts[part_of(worker, tile) * kLogitsTile + row % kLogitsTile]);
  }
  return all;
}

__device__ __forceinline__ MetricPartial finish_row(const Problem& p, int row, const RowPart& all) {
  const int target = static_cast<int>(p.predictions.target(row));
  const bf16* logits = p.logits + static_cast<std::size_t>(row) * p.logits_shares.units * kUnit;
  const float logit = __bfloat162float(logits[target]);
  const double loss = static_cast<double>(logf(all.total)) + (static_cast<double>(all.largest) - logit);
  const float scale = fabs(loss) < INFINITY ? p.gradient_scale : NAN;
  p.row_gradients[row] = {-kLog2e * all.largest - log2f(all.total) + log2f(scale), scale, target};
  const bool hit = logit == all.largest && all.unit == target / kUnit && !is_earlier(logits, target);
  return {loss, hit ? 1u : 0u};
}

__global__ void __launch_bounds__(kRowThreads) rows_kernel(const __grid_constant__ Problem p) {
  __shared__ double losses[kRowThreads / 32];
  __shared__ std::uint32_t hits[kRowThreads / 32];
  wait_for_predecessor();
  let_successor_start();
  const int row = static_cast<int>(blockIdx.x * kRowsPerBlock + threadIdx.x / kRowLanes);
  RowPart all = row < p.rows ? parts_of_row(p, row) : RowPart{};
#pragma unroll
  for (int lanes = 1; lanes < kRowLanes; lanes *= 2) all = together(all, other_lane(all, lanes));
  MetricPartial mine{};
  if (row < p.rows && threadIdx.x % kRowLanes == 0) mine = finish_row(p, row, all);
  const double loss = block_sum<kRowThreads>(mine.loss, losses);
  const std::uint32_t correct = block_sum<kRowThreads>(mine.correct, hits);
  if (threadIdx.x == 0) p.metrics[blockIdx.x] = {loss, correct};
}

// Gradients

constexpr int kBlockRows = kGradientGroups * 64;
constexpr int kWeightStages = 4, kLogitStages = 6;
constexpr int kGradientThreads = (kGradientGroups + 1) * kWarpgroup;  // the last warpgroup converts

struct alignas(1024) GradientShared {
  char weights[kWeightStages][kStripBytes];
  char logits[kLogitStages][kGradientGroups][kSquareBytes];
  std::uint64_t weights_full[kWeightStages], weights_empty[kWeightStages];
  std::uint64_t logits_full[kLogitStages], logits_converted[kLogitStages], logits_empty[kLogitStages];
};
struct GradientMaps {
  CUtensorMap logits, weights, dlogits;  // the latter for the rows of a warp
};

/// Starts copying what a block needs. A thread each, which stays as far ahead as there are stages.
struct WeightsFetcher {
  const GradientMaps& maps;
  const Shares& shares;
  GradientShared& shared;
  int rank, at, end;
  Ring<kWeightStages> ring;

  __device__ __forceinline__ void fetch() {
    if (at == end) return;
    ring.await_empty(shared.weights_empty);
    std::uint64_t* full = &shared.weights_full[ring.stage];
    expect_bytes(full, kStripBytes);
    fetch_part(shared.weights[ring.stage], maps.weights, rank, at % shares.units, full);
    ring.advance();
    ++at;
  }
};
struct LogitsOfBlockFetcher {
  const GradientMaps& maps;
  const Shares& shares;
  GradientShared& shared;
  int rank, at, end;
  Ring<kLogitStages> ring;

  __device__ __forceinline__ void fetch() {
    if (at == end) return;
    ring.await_empty(shared.logits_empty);
    std::uint64_t* full = &shared.logits_full[ring.stage];
    const int row = at / shares.units * kGradientTile + rank * kBlockRows;
    expect_bytes(full, kGradientGroups * kSquareBytes);
#pragma unroll
    for (int group = 0; group < kGradientGroups; ++group) {
      load_tile(shared.logits[ring.stage][group], maps.logits, at % shares.units * kUnit, row + group * 64, full,
                CachePolicy::normal);
    }
    ring.advance();
    ++at;
  }
};

/// Makes logits their gradients, in shared memory, and writes them back. A lane has one row.
struct Converter {
  const GradientMaps& maps;
  const Problem& p;
  GradientShared& shared;
  int block_row;  // of the warp
  RowGradient row;
  Ring<kLogitStages> ring;

  __device__ __forceinline__ void run(Share share) {
    while (share.at < share.end) {
      const Segment segment(p.gradient_shares, share.at, share.end);
      const int first_row = segment.tile * kGradientTile + share.rank * kBlockRows + block_row;
      const int mine = first_row + static_cast<int>(threadIdx.x % 32);
      row = mine < p.rows ? p.row_gradients[mine] : RowGradient{};
      for (int unit = segment.first; unit < segment.last; ++unit) convert(unit, first_row);
      share.at += segment.size();
    }
    end_store<0>();
  }

  __device__ __forceinline__ void convert(int unit, int first_row) {
    await_phase(&shared.logits_full[ring.stage], ring.parity);
    char* const rows = shared.logits[ring.stage][0] + block_row * 128;
    const int lane = threadIdx.x % 32;
    char* const logits = rows + lane * 128;
    const int ahead = row.target - unit * kUnit;
    const bool has_target = static_cast<unsigned>(ahead) < kUnit;
    bf16* const at_target =
        reinterpret_cast<bf16*>(logits + (ahead / 8 ^ lane % 8) * 16) + ahead % 8;  // where has_target
    const float target_logit = has_target ? __bfloat162float(*at_target) : 0.0f;
    uint4 chunks[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) chunks[c] = *reinterpret_cast<const uint4*>(logits + (c ^ lane % 8) * 16);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      *reinterpret_cast<uint4*>(logits + (c ^ lane % 8) * 16) =
          make_uint4(gradients(chunks[c].x), gradients(chunks[c].y), gradients(chunks[c].z), gradients(chunks[c].w));
    }
    if (has_target) *at_target = __float2bfloat16(gradient(target_logit) - row.scale);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
      arrive(&shared.logits_converted[ring.stage]);
      store_tile(rows, maps.dlogits, unit * kUnit, first_row, CachePolicy::evict_first);
      end_stores();
    }
    if (ring.is_used || ring.stage > 0) end_store<1>();
    ring.advance();
  }
  __device__ __forceinline__ float gradient(float logit) const {
    return exp2_approximate(fmaf(kLog2e, logit, row.shift));
  }
  __device__ __forceinline__ std::uint32_t gradients(std::uint32_t pair) const {
    const float2 logits = unpack_bf16(pair);
    return pack_bf16(gradient(logits.x), gradient(logits.y));
  }
  /// Ends that of the stage before this one.
  template <int kPending>
  __device__ __forceinline__ void end_store() {
    if (threadIdx.x % 32 == 0) {
      await_stores_read<kPending>();
      arrive(&shared.logits_empty[ring.previous()]);
    }
  }
};

/// A warpgroup has 64 rows of dx in registers. Fetcher: of the warpgroup's first thread.
template <class Fetcher>
struct GradientWorker : Place {
  const Problem& p;
  GradientShared& shared;
  Fetcher fetcher;
  float dx[128];
  Ring<kWeightStages> weights;
  Ring<kLogitStages> logits;

  __device__ __forceinline__ GradientWorker(const GradientMaps& maps, const Problem& problem, GradientShared& memory,
                                            const Share& share)
      : p(problem), shared(memory), fetcher{maps, problem.gradient_shares, memory, share.rank, share.at, share.end,
                                            {}} {}

  template <int kStages>
  __device__ __forceinline__ void fill() {
    if (threadIdx.x % kWarpgroup == 0) {
      for (int stage = 0; stage < kStages; ++stage) fetcher.fetch();
    }
    __syncwarp();
  }
  __device__ __forceinline__ void run(Share share) {
    while (share.at < share.end) {
      const Segment segment(p.gradient_shares, share.at, share.end);
      for (int unit = segment.first; unit < segment.last; ++unit) {
        start_product(unit > segment.first);
        if (unit > segment.first) {
          wgmma_wait<1>();
          go_on();
        }
        weights.advance();
        logits.advance();
      }
      wgmma_wait<0>();
      settle(dx);
      go_on();
      put(part_of(share.worker, segment.tile), share.rank);
      share.at += segment.size();
    }
  }

  __device__ __forceinline__ void start_product(bool add) {
    await_phase(&shared.weights_full[weights.stage], weights.parity);
    await_phase(&shared.logits_converted[logits.stage], logits.parity);
    const SwizzledOperand rows(shared_address(shared.logits[logits.stage][group]));
    const SwizzledOperand columns(shared_address(shared.weights[weights.stage]), kSquareBytes);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_m64n256k16_transposed_b(dx, rows + 32 * k, columns + k * kStepBytes, add || k > 0);
    }
    wgmma_commit();
  }
  /// When the product before the one that runs has ended.
  __device__ __forceinline__ void go_on() {
    release_to_all(&shared.weights_empty[weights.previous()]);
    release(&shared.logits_empty[logits.previous()]);
    fill<1>();
  }

  __device__ __forceinline__ void put(int part, int rank) const {
    const int first = rank * kBlockRows + group * 64 + warp_row + g;
    float* to = p.dx_parts + (static_cast<std::size_t>(part) * kGradientTile + first) * kWidth + 2 * q;
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      __stcg(reinterpret_cast<float2*>(to + 8 * n), make_float2(dx[4 * n], dx[4 * n + 1]));
      __stcg(reinterpret_cast<float2*>(to + 8 * n + 8 * kWidth), make_float2(dx[4 * n + 2], dx[4 * n + 3]));
    }
  }
};

/// A cluster per worker of the gradients' shares.
DDP_CLUSTERS_OF(kCluster)
__global__ void __launch_bounds__(kGradientThreads, 1)
    input_gradient_kernel(const __grid_constant__ GradientMaps maps, const __grid_constant__ Problem p) {
#if DDP_WGMMA
  GradientShared& shared = *reinterpret_cast<GradientShared*>(dynamic_shared_memory());
  const Share share(p.gradient_shares);
  if (threadIdx.x == 0) {
    for (auto& barrier : shared.weights_full) init_barrier(&barrier, 1);
    for (auto& barrier : shared.weights_empty) init_barrier(&barrier, kCluster * kGradientGroups * 4);
    for (auto& barrier : shared.logits_full) init_barrier(&barrier, 1);
    for (auto& barrier : shared.logits_converted) init_barrier(&barrier, 4);
    for (auto& barrier : shared.logits_empty) init_barrier(&barrier, kGradientGroups * 4 + 4);
    publish_barriers();
  }
  meet_cluster();
  wait_for_predecessor();
  let_successor_start();
  static_assert(kGradientGroups == 2);
  const int group = threadIdx.x / kWarpgroup;
  if (group == 0) {
    take_registers<200>();
    GradientWorker<WeightsFetcher> worker(maps, p, shared, share);
    worker.fill<kWeightStages>();
    worker.run(share);
  } else if (group == 1) {
    take_registers<200>();
    GradientWorker<LogitsOfBlockFetcher> worker(maps, p, shared, share);
    worker.fill<kLogitStages>();
    worker.run(share);
  } else {
    keep_registers<104>();
    const int block_row = threadIdx.x % kWarpgroup / 32 * 32;
    Converter{maps, p, shared, block_row, {}, {}}.run(share);
  }
  __syncwarp();
  meet_cluster();  // a block's memory outlives what the other does with it
#endif
}

constexpr int kSumThreads = 256;
constexpr int kPack = 8;  // elements of dx per thread

__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(const __grid_constant__ Problem p, bf16* dx) {
  const std::size_t at = (static_cast<std::size_t>(blockIdx.x) * kSumThreads + threadIdx.x) * kPack;
  const int row = static_cast<int>(at / kWidth), tile = row / kGradientTile;
  if (row >= p.rows) return;
  wait_for_predecessor();
  float sums[kPack] = {};
  const int last = p.gradient_shares.last_owner(tile);
  for (int worker = p.gradient_shares.first_owner(tile); worker <= last; ++worker) {
    const std::size_t part_row = static_cast<std::size_t>(part_of(worker, tile)) * kGradientTile + row % kGradientTile;
    const auto* from = reinterpret_cast<const float4*>(p.dx_parts + part_row * kWidth + at % kWidth);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 part = __ldcg(from + i);
      sums[4 * i] += part.x;
      sums[4 * i + 1] += part.y;
      sums[4 * i + 2] += part.z;
      sums[4 * i + 3] += part.w;
    }
  }
  *reinterpret_cast<uint4*>(dx + at) = make_uint4(pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]),
                                                  pack_bf16(sums[4], sums[5]), pack_bf16(sums[6], sums[7]));
}

}  // namespace ddptrain::cuda::output_layer
