#pragma once

#include "runtime/ops/cuda/output_layer.cuh"

namespace ddptrain::cuda::output_layer {

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
      for (int lanes = 1; lanes <= 2; lanes *= 2) all = together(all, other_lane(all, lanes));
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
    for (auto& barrier : shared.empty) init_barrier(&barrier, kCluster * kLogitsGroups * kWarps);
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

}  // namespace ddptrain::cuda::output_layer
