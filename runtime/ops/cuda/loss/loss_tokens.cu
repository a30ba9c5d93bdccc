#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/kept_rows.cuh"
#include "runtime/ops/cuda/loss/resident_rows.cuh"

namespace ddptrain {

namespace cuda {
namespace {

using namespace token_rows;

constexpr std::size_t kOtherSharedBytes = 2 * 1024;  // at most, of a block that stages rows

template <int kThreads>
__device__ __forceinline__ float block_max(float value, float (&shared)[kThreads / 32]) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_max(shared[threadIdx.x % (kThreads / 32)]);
}

template <int kThreads>
__device__ __forceinline__ float block_total(float value, float (&shared)[kThreads / 32]) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : 0.0f);
}

/// work(c, value) for each pack of V logits of this thread, from column c on. Logits beyond the vocabulary are
/// -infinity.
template <int kThreads, int V, class T, class Work>
__device__ __forceinline__ void for_columns(const Problem<T>& p, const T* row, Work&& work) {
  for (std::uint32_t c = threadIdx.x * V; c < p.columns; c += kThreads * V) {
    float value[V];
    load<V>(row + c, value);
#pragma unroll
    for (int k = 0; k < V; ++k) value[k] = c + k < p.vocabulary ? value[k] : -INFINITY;
    work(c, value);
  }
}

/// Loss and hit of one row, the same in all threads but for rounding, and its gradient. A thread reads and writes the
/// same columns from first to last, so it needs to wait for no other's, and gradient and logits may share memory.
template <int kThreads, int V, class T>
__device__ MetricPartial one_row(const Problem<T>& p, const T* row, std::uint32_t target, T* gradient,
                                 Shared<kThreads>& shared) {
  const float target_logit = to_float(row[target]);
  float largest = -INFINITY;
  for_columns<kThreads, V>(p, row, [&](std::uint32_t, const float(&value)[V]) {
    for (const float x : value) largest = fmaxf(largest, x);
  });
  largest = block_max<kThreads>(largest, shared.largest);
  float sum = 0.0f;
  for_columns<kThreads, V>(p, row, [&](std::uint32_t, const float(&value)[V]) {
    for (const float x : value) sum += expf(x - largest);
  });
  const float total = block_total<kThreads>(sum, shared.totals);
  bool hit = target_logit == largest;
  if (hit) hit = !__syncthreads_or(is_earlier<kThreads, V>(row, target, largest));
  if (gradient != nullptr) {
    const float scale = isfinite(target_logit) ? p.gradient_scale : NAN;  // all else that is not finite is in `total`
    const float factor = scale / total;
    for_columns<kThreads, V>(p, row, [&](std::uint32_t c, float(&value)[V]) {
      for (float& x : value) x = expf(x - largest) * factor;
      store<V>(value, gradient + c);
    });
    if (target / V % kThreads == threadIdx.x) {
      gradient[target] = from_float<T>(expf(target_logit - largest) * factor - scale);
    }
  }
  const double loss = static_cast<double>(logf(total)) + (static_cast<double>(largest) - target_logit);
  return {loss, hit ? 1u : 0u};
}

/// A block takes one row after another, and reads each three times: for any type and number of columns.
template <class T, int V, int kThreads>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    rows_kernel(const Problem<T> p, const Predictions predictions) {
  __shared__ Shared<kThreads> shared;
  MetricPartial metrics{};
  wait_for_predecessor();
  std::uint32_t count = 0;
  for (std::uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x, ++count) {
    const std::size_t start = static_cast<std::size_t>(row) * p.columns;
    const std::uint32_t target = shared.targets.of(predictions, row, count, p.rows);
    T* gradient = p.dlogits == nullptr ? nullptr : p.dlogits + start;
    const MetricPartial one = one_row<kThreads, V>(p, p.logits + start, target, gradient, shared);
    metrics.loss += one.loss;
    metrics.correct += one.correct;
  }
  if (threadIdx.x == 0) p.partials[blockIdx.x] = metrics;
}

/// Blocks that fit the multiprocessors which communication leaves.
template <class Kernel>
std::uint32_t resident_blocks(Kernel kernel, int threads, std::size_t shared_bytes, int multiprocessors) {
  int blocks = 0;
  reserve_shared_memory(kernel, shared_bytes);
  DDP_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes));
  return static_cast<std::uint32_t>(std::max(1, blocks) * multiprocessors);
}

constexpr std::uint32_t kMaxBlocks = 8192;

/// Returns the number of partials.
template <class T, class Kernel>
std::uint32_t launch(Kernel kernel, int threads, std::size_t shared_bytes, const Problem<T>& p,
                     const Predictions& predictions, int multiprocessors, cudaStream_t stream) {
  const std::uint32_t blocks =
      std::min({p.rows, kMaxBlocks, resident_blocks(kernel, threads, shared_bytes, multiprocessors)});
  launch_early(kernel, static_cast<int>(blocks), threads, shared_bytes, stream, p, predictions);
  return blocks;
}

template <int kCluster>
void launch_clusters(const Problem<bf16>& p, const Predictions& predictions, std::size_t bytes, cudaStream_t stream) {
  const auto kernel = resident_rows_kernel<kResidentThreads, kCluster, kLastRowFirst, Predictions>;
  reserve_shared_memory(kernel, bytes);
  launch_clusters_early(kernel, kCluster, p.rows * kCluster, kResidentThreads, bytes, stream, p, predictions);
}

std::uint32_t launch_resident_rows(const ResidentPlan& plan, const Problem<bf16>& p, const Predictions& predictions,
                                   cudaStream_t stream) {
  const auto launch = plan.cluster == 1   ? launch_clusters<1>
                      : plan.cluster == 2 ? launch_clusters<2>
                      : plan.cluster == 4 ? launch_clusters<4>
                                          : launch_clusters<8>;
  launch(p, predictions, plan.bytes, stream);
  return p.rows;
}

template <int kThreads, int kPacks>
std::uint32_t launch_kept_rows(const Problem<bf16>& p, const Predictions& predictions, int multiprocessors,
                               cudaStream_t stream) {
  const std::size_t bytes = sizeof(bf16) * static_cast<std::size_t>(p.columns);
  const std::size_t most = shared_memory_limit() - kOtherSharedBytes;
  const auto start = [&](auto kernel, int stages) {
    return launch(kernel, kThreads, stages * bytes, p, predictions, multiprocessors, stream);
  };
  if (2 * bytes <= most) return start(kept_rows_kernel<kThreads, 2, kPacks>, 2);
  if (bytes <= most) return start(kept_rows_kernel<kThreads, 1, kPacks>, 1);
  return start(kept_rows_kernel<kThreads, 0, kPacks>, 0);
}

template <class T>
std::uint32_t launch_predictions(const Problem<T>& p, const Predictions& predictions, int multiprocessors,
                                 cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  const auto start = [&](auto kernel, int threads) {
    return launch(kernel, threads, 0, p, predictions, multiprocessors, stream);
  };
  if (p.columns % kWide != 0 || !is_aligned(p.logits, 16) || !is_aligned(p.dlogits, 16)) {
    return start(rows_kernel<T, 1, 512>, 512);
  }
  if (p.columns <= 2048 * kWide) return start(rows_kernel<T, kWide, 128>, 128);
  if constexpr (kWide == 8) {
    // Code that may start early is that of 9.0 and newer.
    const auto plan = plan_resident_rows(p.columns, shared_memory_limit());
    if (launches_early() && plan) return launch_resident_rows(*plan, p, predictions, stream);
    if (p.columns <= 5 * 512 * 8) return launch_kept_rows<512, 5>(p, predictions, multiprocessors, stream);
    constexpr std::uint32_t kKept = 7 * 1024 * 8;
    if (p.columns <= kKept) return launch_kept_rows<1024, 7>(p, predictions, multiprocessors, stream);
    const std::size_t rest = sizeof(bf16) * static_cast<std::size_t>(p.columns - kKept);
    if (rest <= shared_memory_limit() - kOtherSharedBytes) {
      return launch(long_rows_kernel<1024, 7>, 1024, rest, p, predictions, multiprocessors, stream);
    }
  }
  return start(rows_kernel<T, kWide, 1024>, 1024);
}

}  // namespace
}  // namespace cuda

void CudaLoss::token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                   std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                                   MetricSums* sums) {
  const MatrixShape s =
      check_predictions("token_cross_entropy", logits, batch, first_row, vocabulary, {}, dlogits, dtype());
  if (s.rows == 0) return;
  auto* partials =
      scratch().reserve_elements<cuda::MetricPartial>(std::max<std::int64_t>(s.rows, cuda::kMaxBlocks), stream());
  std::uint32_t count = 0;
  cuda::with_element(dtype(), [&]<class T>(T) {
    count = cuda::launch_predictions<T>(
        {logits.as<T>(), dlogits.as<T>(), partials, static_cast<std::uint32_t>(s.rows),
         static_cast<std::uint32_t>(s.columns), static_cast<std::uint32_t>(vocabulary), gradient_scale},
        {batch, static_cast<std::uint32_t>(first_row)}, multiprocessors(), stream());
  });
  cuda::add_metric_partials(partials, count, s.rows, batch.step, sums, stream());
}

}  // namespace ddptrain
