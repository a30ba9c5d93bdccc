#pragma once

#include "runtime/ops/cuda/output_layer.cuh"

namespace ddptrain::cuda::output_layer {

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
    for (auto& barrier : shared.weights_empty) init_barrier(&barrier, kCluster * kGradientGroups * kWarps);
    for (auto& barrier : shared.logits_full) init_barrier(&barrier, 1);
    for (auto& barrier : shared.logits_converted) init_barrier(&barrier, kWarps);
    for (auto& barrier : shared.logits_empty) init_barrier(&barrier, kGradientGroups * kWarps + kWarps);
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
