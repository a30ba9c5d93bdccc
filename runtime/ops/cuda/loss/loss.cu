#include <algorithm>
#include <cfloat>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kWarps = 8;  // of a block; a warp takes one row at a time
constexpr std::uint32_t kMaxBlocks = 1024;

struct Best {
  float value;
  std::uint32_t index;
};

/// The largest value, at its lowest index.
__device__ Best warp_best(Best best) {
  for (int offset = 16; offset > 0; offset /= 2) {
    const float value = __shfl_xor_sync(kAllLanes, best.value, offset);
    const std::uint32_t index = __shfl_xor_sync(kAllLanes, best.index, offset);
    if (value > best.value || (value == best.value && index < best.index)) best = {value, index};
  }
  return best;
}

/// Loss of one row and whether its largest logit is the label's. A lane reads and writes the same columns, so that
/// gradient and logits may share memory.
template <class T>
__device__ MetricPartial row_loss(const T* logits, std::uint32_t classes, std::uint32_t label, float gradient_scale,
                                  T* gradient) {
  const std::uint32_t lane = threadIdx.x % 32;
  Best best{-FLT_MAX, classes};
  float label_value = 0.0f;
  for (std::uint32_t c = lane; c < classes; c += 32) {
    const float value = to_float(logits[c]);
    if (value > best.value || best.index == classes) best = {value, c};
    if (c == label) label_value = value;
  }
  best = warp_best(best);
  label_value = warp_sum(label_value);
  float total = 0.0f;
  for (std::uint32_t c = lane; c < classes; c += 32) total += expf(to_float(logits[c]) - best.value);
  total = warp_sum(total);
  const float loss = logf(total) + best.value - label_value;
  if (gradient != nullptr) {
    if (!isfinite(loss)) gradient_scale = NAN;
    const float factor = gradient_scale / total;
    for (std::uint32_t c = lane; c < classes; c += 32) {
      const float probability = expf(to_float(logits[c]) - best.value) * factor;
      gradient[c] = from_float<T>(c == label ? probability - gradient_scale : probability);
    }
  }
  return {static_cast<double>(loss), best.index == label ? 1u : 0u};
}

template <class T>
__global__ void __launch_bounds__(32 * kWarps)
    softmax_kernel(const T* logits, std::uint32_t rows, std::uint32_t classes, const std::uint8_t* labels,
                   SampleOrder order, StepRef step, float gradient_scale, T* dlogits, MetricPartial* partials) {
  __shared__ MetricPartial shared[kWarps];
  const std::uint32_t warp = threadIdx.x / 32;
  const BatchRows samples(order, step);
  MetricPartial mine{};
  for (std::uint32_t row = blockIdx.x * kWarps + warp; row < rows; row += gridDim.x * kWarps) {
    const std::uint32_t label = labels[samples[row]];
    const std::size_t at = static_cast<std::size_t>(row) * classes;
    const MetricPartial one =
        row_loss(logits + at, classes, label, gradient_scale, dlogits == nullptr ? nullptr : dlogits + at);
    mine.loss += one.loss;
    mine.correct += one.correct;
  }
  if (threadIdx.x % 32 == 0) shared[warp] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  MetricPartial block{};
  for (const MetricPartial& part : shared) {
    block.loss += part.loss;
    block.correct += part.correct;
  }
  partials[blockIdx.x] = block;
}

constexpr std::uint32_t kSumThreads = 256;

__global__ void __launch_bounds__(kSumThreads)
    sum_kernel(const MetricPartial* partials, std::uint32_t count, std::uint32_t rows, MetricSums* sums) {
  __shared__ MetricPartial shared[kSumThreads];
  wait_for_predecessor();
  MetricPartial mine{};
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
}

}  // namespace

void add_metric_partials(const MetricPartial* partials, std::uint32_t count, std::int64_t rows, MetricSums* sums,
                         cudaStream_t stream) {
  launch_early(sum_kernel, 1, kSumThreads, 0, stream, partials, count, rows, sums);
}

}  // namespace cuda

void CudaLoss::softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale,
                                     const Tensor& dlogits, MetricSums* sums) {
  const MatrixShape s = check_softmax_cross_entropy(logits, batch, dlogits, dtype());
  if (s.rows == 0) return;
  const std::uint32_t blocks = std::min(cuda::ceil_div(s.rows, cuda::kWarps), cuda::kMaxBlocks);
  auto* partials = scratch().reserve_elements<cuda::MetricPartial>(cuda::kMaxBlocks, stream());
  cuda::with_element(dtype(), [&]<class T>(T) {
    cuda::launch_kernel(cuda::softmax_kernel<T>, blocks, 32 * cuda::kWarps, 0, stream(), logits.as<T>(), s.rows,
                        s.columns, batch.labels.as<std::uint8_t>(), batch.order, batch.step, gradient_scale,
                        dlogits.as<T>(), partials);
  });
  cuda::add_metric_partials(partials, blocks, s.rows, sums, stream());
}

std::unique_ptr<LossOps> LossOps::on_cuda(Device& device) { return std::make_unique<CudaLoss>(device); }

}  // namespace ddptrain
