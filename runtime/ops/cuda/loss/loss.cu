#include <algorithm>
#include <type_traits>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/device/cuda/logged_step.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/loss/sliced_rows.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

using sliced_rows::kWarps;
constexpr std::uint32_t kMaxBlocks = 1024;

/// Classes of the images of a batch.
struct Labels {
  const std::uint8_t* labels;
  SampleOrder order;
  StepRef step;

  __device__ __forceinline__ std::uint32_t target(std::uint32_t row) const {
    return labels[BatchRows(order, step)[row]];
  }
};

/// Targets that are among the columns of this rank. Others have a column that does not exist.
struct SliceTargets {
  Predictions predictions;

  __device__ __forceinline__ std::uint32_t target(std::uint32_t row) const {
    return predictions.batch.vocabulary_slice.row(predictions.target(row));
  }
};

struct RowStatistics {
  float largest, total, target_logit;
  bool hit;
};

/// Rows of logits of images. A warp takes a row. A lane reads and writes the same columns, so that gradient and logits
/// may share memory.
template <class T>
struct ImageRows {
  const T* logits;
  std::uint32_t count, columns;
  Labels labels;

  __device__ RowStatistics statistics(std::uint32_t row) const {
    const T* of_row = logits + static_cast<std::size_t>(row) * columns;
    const std::uint32_t lane = threadIdx.x % 32, target = labels.target(row);
    float largest = -INFINITY, total = 0.0f;
    for (std::uint32_t c = lane; c < columns; c += 32) largest = fmaxf(largest, to_float(of_row[c]));
    largest = warp_max(largest);
    bool is_earlier = false;  // than the target, and as large as any
    for (std::uint32_t c = lane; c < columns; c += 32) {
      const float value = to_float(of_row[c]);
      total += expf(value - largest);
      is_earlier = is_earlier || (c < target && value == largest);
    }
    const bool is_first = !__any_sync(kAllLanes, is_earlier);
    const float target_logit = to_float(of_row[target]);
    __syncwarp();  // the target's logit is read before its gradient is written
    return {largest, warp_sum(total), target_logit, is_first && target_logit == largest};
  }

  __device__ void write_gradient(std::uint32_t row, const RowStatistics& of_row, float loss, float scale,
                                 T* dlogits) const {
    const std::size_t start = static_cast<std::size_t>(row) * columns;
    const std::uint32_t target = labels.target(row);
    if (!isfinite(loss)) scale = NAN;
    const float factor = scale / of_row.total;
    for (std::uint32_t c = threadIdx.x % 32; c < columns; c += 32) {
      const float probability = expf(to_float(logits[start + c]) - of_row.largest) * factor;
      dlogits[start + c] = from_float<T>(c == target ? probability - scale : probability);
    }
  }
};

/// A partial of metrics per warp.
template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    softmax_kernel(const ImageRows<T> rows, float gradient_scale, T* dlogits, MetricPartial* partials) {
  const std::uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32;
  MetricPartial metrics{};
  for (std::uint32_t row = warp; row < rows.count; row += gridDim.x * kWarps) {
    const RowStatistics statistics = rows.statistics(row);
    const float loss = logf(statistics.total) + statistics.largest - statistics.target_logit;
    metrics.loss += static_cast<double>(loss);
    metrics.correct += statistics.hit ? 1u : 0u;
    if (dlogits != nullptr) rows.write_gradient(row, statistics, loss, gradient_scale, dlogits);
  }
  if (threadIdx.x % 32 == 0) partials[warp] = metrics;
}

constexpr std::uint32_t kSumThreads = 1024;

__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const MetricPartial* partials, std::uint32_t count, std::uint32_t rows, StepRef step, MetricSums* sums) {
  __shared__ MetricPartial shared[kSumThreads];
  const LoggedStep logged(step);
  wait_for_predecessor();
  MetricPartial mine{};
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < count; i += kSumThreads) {
    mine.loss += partials[i].loss;
    mine.correct += partials[i].correct;
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (std::uint32_t half = kSumThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      shared[threadIdx.x].loss += shared[threadIdx.x + half].loss;
      shared[threadIdx.x].correct += shared[threadIdx.x + half].correct;
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  sums->loss += shared[0].loss;
  sums->correct += shared[0].correct;
  sums->samples += rows;
  logged.note_sums(sums);
}

/// Calls work(V, rows) with packs of 16 bytes, or of one column if logits or `output` have no such packs.
template <class T, class Work>
void with_sliced_rows(const Tensor& logits, std::int64_t counted, const SliceTargets& targets, const void* output,
                      Work&& work) {
  constexpr int kWide = 16 / sizeof(T);
  const sliced_rows::Rows<T, SliceTargets> rows = {logits.as<const T>(), static_cast<std::uint32_t>(logits.dim(0)),
                                                   static_cast<std::uint32_t>(logits.dim(1)),
                                                   static_cast<std::uint32_t>(counted), targets};
  if (rows.columns % kWide == 0 && is_aligned(rows.logits, 16) && is_aligned(output, 16)) {
    work(std::integral_constant<int, kWide>{}, rows);
  } else {
    work(std::integral_constant<int, 1>{}, rows);
  }
}

std::uint32_t blocks_for(const MatrixShape& s) { return std::min(ceil_div(s.rows, kWarps), kMaxBlocks); }

}  // namespace

void add_metric_partials(const MetricPartial* partials, std::uint32_t count, std::int64_t rows, StepRef step,
                         MetricSums* sums, cudaStream_t stream) {
  launch_early(sum_kernel, 1, kSumThreads, 0, stream, partials, count, rows, step, sums);
}

}  // namespace cuda

void CudaLoss::softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale,
                                     const Tensor& dlogits, MetricSums* sums) {
  const MatrixShape s = check_softmax_cross_entropy(logits, batch, dlogits, dtype());
  if (s.rows == 0) return;
  const std::uint32_t blocks = cuda::blocks_for(s);
  auto* partials = scratch().reserve_elements<cuda::MetricPartial>(blocks * cuda::kWarps, stream());
  cuda::with_element(dtype(), [&]<class T>(T) {
    cuda::launch_kernel(cuda::softmax_kernel<T>, blocks, 32 * cuda::kWarps, 0, stream(),
                        cuda::ImageRows<T>{logits.as<const T>(),
                                           static_cast<std::uint32_t>(s.rows),
                                           static_cast<std::uint32_t>(s.columns),
                                           {batch.labels.as<std::uint8_t>(), batch.order, batch.step}},
                        gradient_scale, dlogits.as<T>(), partials);
  });
  cuda::add_metric_partials(partials, blocks * cuda::kWarps, s.rows, batch.step, sums, stream());
}

void CudaLoss::partial_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                     std::int64_t vocabulary, const Tensor& statistics) {
  const MatrixShape s =
      check_predictions("partial_cross_entropy", logits, batch, first_row, vocabulary, statistics, {}, dtype());
  const cuda::SliceTargets targets{{batch, static_cast<std::uint32_t>(first_row)}};
  cuda::with_element(dtype(), [&]<class T>(T) {
    cuda::with_sliced_rows<T>(logits, vocabulary, targets, nullptr, [&](auto pack, const auto& rows) {
      cuda::launch_kernel(cuda::sliced_rows::statistics_kernel<T, pack.value, cuda::SliceTargets>, cuda::blocks_for(s),
                          32 * cuda::kWarps, 0, stream(), rows, statistics.as<float>());
    });
  });
}

void CudaLoss::combined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                      std::int64_t vocabulary, const Tensor& statistics, float gradient_scale,
                                      const Tensor& dlogits, MetricSums* sums) {
  const MatrixShape s =
      check_predictions("combined_cross_entropy", logits, batch, first_row, vocabulary, statistics, dlogits, dtype());
  const cuda::SliceTargets targets{{batch, static_cast<std::uint32_t>(first_row)}};
  const std::uint32_t blocks = cuda::blocks_for(s);
  auto* partials = scratch().reserve_elements<cuda::MetricPartial>(blocks * cuda::kWarps, stream());
  cuda::with_element(dtype(), [&]<class T>(T) {
    cuda::with_sliced_rows<T>(logits, vocabulary, targets, dlogits.data, [&](auto pack, const auto& rows) {
      cuda::launch_kernel(cuda::sliced_rows::combined_kernel<T, pack.value, cuda::SliceTargets>, blocks,
                          32 * cuda::kWarps, 0, stream(), rows, statistics.as<float>(), statistics.dim(0),
                          gradient_scale, dlogits.as<T>(), partials);
    });
  });
  cuda::add_metric_partials(partials, blocks * cuda::kWarps, s.rows, batch.step, sums, stream());
}

std::unique_ptr<LossOps> LossOps::on_cuda(Device& device) { return std::make_unique<CudaLoss>(device); }

}  // namespace ddptrain
