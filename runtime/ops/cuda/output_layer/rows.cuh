#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/predictions.cuh"
#include "runtime/ops/cuda/output_layer/softmax_part.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/softmax_statistics.h"

// Between the product that gives logits and the one that gives the input's gradient: what is known of a tile of each
// row becomes what is known of the row, its loss, and what turns its logits into gradients. Eight lanes take a row.

namespace ddptrain::cuda::output_rows {

using bf16 = __nv_bfloat16;

constexpr int kThreads = 256;
constexpr int kLanes = 8;
constexpr int kRowsOfBlock = kThreads / kLanes;

/// See LossOps::kSoftmaxStatistics.
struct alignas(16) Statistics {
  float largest, total, target_logit;
  float hit;  ///< 1 or 0

  __device__ double loss() const {
    return static_cast<double>(logf(total)) + (static_cast<double>(largest) - static_cast<double>(target_logit));
  }
};

/// The statistics of rows of logits, from those of their tiles.
struct OfTiles {
  const SoftmaxPart* parts;  ///< [tiles, rows]
  const bf16* logits;        ///< [rows, columns]
  int tiles, columns_of_tile;
  int rows, columns;
  int vocabulary;  ///< Columns that count.

  /// All lanes of the warp call it, for four rows.
  __device__ Statistics row(int row, std::uint32_t target) const {
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    float largest = -INFINITY, total = 0.0f;
    int first = 0;  // the first tile with the largest logit
    for (int tile = lane; tile < tiles; tile += kLanes) {
      add({parts[static_cast<std::size_t>(tile) * rows + row]}, tile, largest, total, first);
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) {
      const SoftmaxPart other{__shfl_xor_sync(kAllLanes, largest, lanes), __shfl_xor_sync(kAllLanes, total, lanes)};
      add(other, __shfl_xor_sync(kAllLanes, first, lanes), largest, total, first);
    }
    const bf16* const of_row = logits + static_cast<std::size_t>(row) * columns;
    const bool is_here = target < static_cast<std::uint32_t>(vocabulary);
    const float target_logit = is_here ? __bfloat162float(of_row[target]) : 0.0f;
    const int column = is_here ? static_cast<int>(target) : 0;
    const bool may_hit = is_here && target_logit == largest && column / columns_of_tile == first;
    int earlier = 0;  // columns of the tile as large as the target's, before it
    for (int c = first * columns_of_tile + lane; may_hit && c < column; c += kLanes) {
      earlier += __bfloat162float(of_row[c]) == largest ? 1 : 0;
    }
#pragma unroll
    for (int lanes = 1; lanes < kLanes; lanes *= 2) earlier += __shfl_xor_sync(kAllLanes, earlier, lanes);
    return {largest, total, target_logit, may_hit && earlier == 0 ? 1.0f : 0.0f};
  }

 private:
  static __device__ __forceinline__ void add(const SoftmaxPart& part, int tile, float& largest, float& total,
                                             int& first) {
    if (part.largest > largest || (part.largest == largest && tile < first)) first = tile;
    const float most = fmaxf(part.largest, largest), shift = shift_for(most);
    total = total * shifted_exponential(largest, shift) + part.total * shifted_exponential(part.largest, shift);
    largest = most;
  }
};

/// The statistics of rows of the whole vocabulary, from those of its slices.
struct OfSlices {
  const float* statistics;  ///< [slices, rows, LossOps::kSoftmaxStatistics]
  int slices;
  int rows;
  int vocabulary;

  __device__ Statistics row(int row, std::uint32_t) const {
    const std::int64_t stride = static_cast<std::int64_t>(rows) * 4;
    const CombinedSoftmax<float> all(statistics + static_cast<std::int64_t>(row) * 4, slices, stride);
    return {all.largest, all.total, all.target, all.hit ? 1.0f : 0.0f};
  }
};

__device__ __forceinline__ int row_of_thread() {
  return static_cast<int>(blockIdx.x) * kRowsOfBlock + static_cast<int>(threadIdx.x) / kLanes;
}

__global__ void __launch_bounds__(kThreads)
    statistics_kernel(const OfTiles source, const SliceTargets targets, Statistics* out) {
  wait_for_predecessor();
  const int row = row_of_thread(), read = min(row, source.rows - 1);
  const Statistics found = source.row(read, targets.target(static_cast<std::uint32_t>(read)));
  if (row < source.rows && threadIdx.x % kLanes == 0) out[row] = found;
}

/// A partial of metrics per block. `gradients` may be null.
template <class Source>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const Source source, const SliceTargets targets, float gradient_scale, RowGradient* gradients,
                MetricPartial* metrics) {
  __shared__ double losses[kThreads / 32];
  __shared__ std::uint32_t hits[kThreads / 32];
  wait_for_predecessor();
  const int row = row_of_thread(), read = min(row, source.rows - 1);
  const std::uint32_t target = targets.target(static_cast<std::uint32_t>(read));
  const Statistics found = source.row(read, target);
  MetricPartial mine{};
  if (row < source.rows && threadIdx.x % kLanes == 0) {
    mine = {found.loss(), found.hit > 0.0f ? 1u : 0u};
    const float scale = fabs(mine.loss) < INFINITY ? gradient_scale : NAN;
    const float shift = log2f(scale) - kLog2e * found.largest - log2f(found.total);
    const bool is_here = target < static_cast<std::uint32_t>(source.vocabulary);
    const float at_target = shifted_exponential(found.target_logit, shift) - scale;
    if (gradients != nullptr) gradients[row] = {shift, is_here ? static_cast<std::int32_t>(target) : -1, at_target};
  }
  const double loss = block_sum<kThreads>(mine.loss, losses);
  const std::uint32_t correct = block_sum<kThreads>(mine.correct, hits);
  if (threadIdx.x == 0) metrics[blockIdx.x] = {loss, correct};
}

}  // namespace ddptrain::cuda::output_rows
