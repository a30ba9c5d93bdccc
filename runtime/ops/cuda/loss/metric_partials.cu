#include "runtime/ops/cuda/loss/metric_partials.h"

#include "runtime/device/cuda/launch.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    sum_kernel(const MetricPartial* partials, std::uint32_t count, std::uint32_t rows, MetricSums* sums) {
  __shared__ MetricPartial shared[kThreads];
  wait_for_predecessor();
  MetricPartial mine{};
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) {
    mine.loss += partials[i].loss;
    mine.correct += partials[i].correct;
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (std::uint32_t half = kThreads / 2; half > 0; half /= 2) {
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
  launch_early(sum_kernel, 1, kThreads, 0, stream, partials, count, rows, sums);
}

}  // namespace ddptrain::cuda
