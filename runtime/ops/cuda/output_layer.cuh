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

/// How the kernels of wgmma_output_layer() share their work and what they fetch. Tests also run them on the CPU
/// (tests/emulated).
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
constexpr int kWarpgroup = 128, kWarps = kWarpgroup / 32;
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

}  // namespace ddptrain::cuda::output_layer
