#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/loss.h"
#include "runtime/ops/softmax_statistics.h"

/// Cross-entropy of tokens for ranks that split the vocabulary. A warp takes a row of this rank's columns. A lane has
/// packs of V neighbouring columns, 32 packs apart, and loads kAtOnce packs before it works on the first.

namespace ddptrain::cuda::sliced_rows {

inline constexpr std::uint32_t kWarps = 8;  // of a block
inline constexpr int kAtOnce = 4;

/// `counted` of `columns` columns count. V divides `columns`. Targets among the columns of other ranks have a column
/// that does not exist here.
template <class T, class Targets>
struct Rows {
  const T* logits;
  std::uint32_t count, columns, counted;
  Targets targets;

  __device__ __forceinline__ std::size_t start(std::uint32_t row) const {
    return static_cast<std::size_t>(row) * columns;
  }
};

/// work(column, logits) for each pack of this lane among the first `end` columns.
template <int V, class T, class Work>
__device__ __forceinline__ void for_packs(const T* row, std::uint32_t end, Work&& work) {
  constexpr std::uint32_t kStep = 32 * V;
  for (std::uint32_t first = threadIdx.x % 32 * V; first < end; first += kAtOnce * kStep) {
    float x[kAtOnce][V];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kStep < end) load<V>(row + first + i * kStep, x[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kStep < end) work(first + i * kStep, x[i]);
    }
  }
}

/// Of the columns that a lane has seen so far.
struct Seen {
  float largest = -INFINITY;
  float total = 0.0f;       ///< Of exp(logit - largest).
  std::uint32_t first = 0;  ///< The first column that has the largest logit.

  template <int V>
  __device__ __forceinline__ void add(std::uint32_t column, const float (&x)[V], std::uint32_t counted) {
    float most = largest;
#pragma unroll
    for (int k = 0; k < V; ++k) most = column + k < counted ? fmaxf(most, x[k]) : most;
    if (most > largest) {
      total *= expf(largest - most);
#pragma unroll
      for (int k = V - 1; k >= 0; --k) first = column + k < counted && x[k] == most ? column + k : first;
      largest = most;
    }
    const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
    for (int k = 0; k < V; ++k) total += column + k < counted ? expf(x[k] - base) : 0.0f;
  }
};

/// See LossOps::kSoftmaxStatistics. The last row comes first: the kernel before has probably written it last, and it is
/// still in the L2 cache.
template <class T, int V, class Targets>
__global__ void __launch_bounds__(32 * kWarps) statistics_kernel(const Rows<T, Targets> rows, float* out) {
  for (std::uint32_t i = blockIdx.x * kWarps + threadIdx.x / 32; i < rows.count; i += gridDim.x * kWarps) {
    const std::uint32_t row = rows.count - 1 - i, target = rows.targets.target(row);
    const T* const logits = rows.logits + rows.start(row);
    Seen seen;
    for_packs<V>(logits, rows.counted,
                 [&](std::uint32_t column, const float(&x)[V]) { seen.add(column, x, rows.counted); });
    const float largest = warp_max(seen.largest);
    const float total = warp_sum(seen.total * (seen.largest == largest ? 1.0f : expf(seen.largest - largest)));
    const bool is_first = !__any_sync(0xFFFFFFFFu, seen.largest == largest && seen.first < target);
    if (threadIdx.x % 32 > 0) continue;
    const float target_logit = target < rows.counted ? to_float(logits[target]) : 0.0f;
    float* const of_row = out + static_cast<std::size_t>(row) * LossOps::kSoftmaxStatistics;
    of_row[0] = largest;
    of_row[1] = total;
    of_row[2] = target_logit;
    of_row[3] = target < rows.counted && is_first && target_logit == largest ? 1.0f : 0.0f;
  }
}

/// `statistics`: of `parts` slices. dlogits may be null, or the logits. A partial of metrics per warp.
template <class T, int V, class Targets>
__global__ void __launch_bounds__(32 * kWarps)
    combined_kernel(const Rows<T, Targets> rows, const float* statistics, std::uint32_t parts, float gradient_scale,
                    T* dlogits, MetricPartial* partials) {
  const std::uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  MetricPartial metrics{};
  for (std::uint32_t row = warp; row < rows.count; row += gridDim.x * kWarps) {
    const CombinedSoftmax<float> all(statistics + static_cast<std::size_t>(row) * LossOps::kSoftmaxStatistics, parts,
                                     static_cast<std::int64_t>(rows.count) * LossOps::kSoftmaxStatistics);
    metrics.loss += all.loss();
    metrics.correct += all.hit ? 1u : 0u;
    if (dlogits == nullptr) continue;
    const std::uint32_t target = rows.targets.target(row);
    const float scale = std::isfinite(all.loss()) ? gradient_scale : NAN, factor = scale / all.total;
    T* const gradient = dlogits + rows.start(row);
    for_packs<V>(rows.logits + rows.start(row), rows.columns, [&](std::uint32_t column, float(&x)[V]) {
#pragma unroll
      for (int k = 0; k < V; ++k) {
        const float probability = expf(x[k] - all.largest) * factor;
        x[k] = column + k >= rows.counted ? 0.0f : column + k == target ? probability - scale : probability;
      }
      store<V>(x, gradient + column);
    });
  }
  if (threadIdx.x % 32 == 0) partials[warp] = metrics;
}

}  // namespace ddptrain::cuda::sliced_rows
