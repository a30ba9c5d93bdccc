#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/joined_facts.h"

/// The cross-entropy of logits whose columns are on several ranks. A warp takes one row after another.

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kWarps = 8;  // of a block
constexpr std::uint32_t kMaxBlocks = 1024;

/// Rows of logits. Their first `vocabulary` columns count.
template <class T>
struct Rows {
  const T* logits;
  std::uint32_t count, columns, vocabulary;
  Predictions predictions;

  __device__ __forceinline__ std::uint32_t target(std::uint32_t row) const {
    return predictions.batch.part.row(predictions.target(row));
  }
};

template <class T>
__global__ void __launch_bounds__(32 * kWarps) facts_kernel(const Rows<T> rows, float* facts) {
  const std::uint32_t lane = threadIdx.x % 32;
  for (std::uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32; row < rows.count; row += gridDim.x * kWarps) {
    const T* logits = rows.logits + static_cast<std::size_t>(row) * rows.columns;
    const std::uint32_t target = rows.target(row);
    float largest = -INFINITY, total = 0.0f;
    for (std::uint32_t c = lane; c < rows.vocabulary; c += 32) largest = fmaxf(largest, to_float(logits[c]));
    largest = warp_max(largest);
    bool is_earlier = false;  // than the target, and as large as any
    for (std::uint32_t c = lane; c < rows.vocabulary; c += 32) {
      const float value = to_float(logits[c]);
      total += expf(value - largest);
      is_earlier = is_earlier || (c < target && value == largest);
    }
    total = warp_sum(total);
    const bool is_first = !__any_sync(kAllLanes, is_earlier);
    if (lane > 0) continue;
    const bool is_here = target < rows.vocabulary;
    const float target_logit = is_here ? to_float(logits[target]) : 0.0f;
    float* out = facts + static_cast<std::size_t>(row) * LossOps::kFacts;
    out[0] = largest;
    out[1] = total;
    out[2] = target_logit;
    out[3] = is_here && is_first && target_logit == largest ? 1.0f : 0.0f;
  }
}

/// The gradient may be in the memory of the logits. A partial of metrics per warp.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    joined_kernel(const Rows<T> rows, const float* facts, std::uint32_t parts, float gradient_scale, T* dlogits,
                  MetricPartial* partials) {
  const std::uint32_t lane = threadIdx.x % 32, warp = blockIdx.x * kWarps + threadIdx.x / 32;
  MetricPartial metrics{};
  for (std::uint32_t row = warp; row < rows.count; row += gridDim.x * kWarps) {
    const JoinedFacts<float> all(facts + static_cast<std::size_t>(row) * LossOps::kFacts, parts,
                                 static_cast<std::int64_t>(rows.count) * LossOps::kFacts);
    metrics.loss += all.loss();
    metrics.correct += all.hit ? 1u : 0u;
    if (dlogits == nullptr) continue;
    const std::size_t start = static_cast<std::size_t>(row) * rows.columns;
    const std::uint32_t target = rows.target(row);
    const float scale = isfinite(all.loss()) ? gradient_scale : NAN;
    const float factor = scale / all.total;
    for (std::uint32_t c = lane; c < rows.columns; c += 32) {
      const float probability = expf(to_float(rows.logits[start + c]) - all.largest) * factor;
      dlogits[start + c] = from_float<T>(c >= rows.vocabulary ? 0.0f : c == target ? probability - scale : probability);
    }
  }
  if (lane == 0) partials[warp] = metrics;
}

template <class T>
Rows<T> rows_of(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row, std::int64_t vocabulary) {
  return {logits.as<const T>(),
          static_cast<std::uint32_t>(logits.dim(0)),
          static_cast<std::uint32_t>(logits.dim(1)),
          static_cast<std::uint32_t>(vocabulary),
          {batch, static_cast<std::uint32_t>(first_row)}};
}

std::uint32_t blocks_for(const MatrixShape& s) { return std::min(ceil_div(s.rows, kWarps), kMaxBlocks); }

}  // namespace
}  // namespace cuda

void CudaLoss::part_of_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                     std::int64_t vocabulary, const Tensor& facts) {
  const MatrixShape s =
      check_predictions("part_of_cross_entropy", logits, batch, first_row, vocabulary, facts, {}, dtype());
  cuda::with_element(dtype(), [&]<class T>(T) {
    cuda::launch_kernel(cuda::facts_kernel<T>, cuda::blocks_for(s), 32 * cuda::kWarps, 0, stream(),
                        cuda::rows_of<T>(logits, batch, first_row, vocabulary), facts.as<float>());
  });
}

void CudaLoss::joined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                    std::int64_t vocabulary, const Tensor& facts, float gradient_scale,
                                    const Tensor& dlogits, MetricSums* sums) {
  const MatrixShape s =
      check_predictions("joined_cross_entropy", logits, batch, first_row, vocabulary, facts, dlogits, dtype());
  const std::uint32_t blocks = cuda::blocks_for(s);
  auto* partials = scratch().reserve_elements<cuda::MetricPartial>(cuda::kMaxBlocks * cuda::kWarps, stream());
  cuda::with_element(dtype(), [&]<class T>(T) {
    cuda::launch_kernel(cuda::joined_kernel<T>, blocks, 32 * cuda::kWarps, 0, stream(),
                        cuda::rows_of<T>(logits, batch, first_row, vocabulary), facts.as<float>(), facts.dim(0),
                        gradient_scale, dlogits.as<T>(), partials);
  });
  cuda::add_metric_partials(partials, blocks * cuda::kWarps, s.rows, sums, stream());
}

}  // namespace ddptrain
