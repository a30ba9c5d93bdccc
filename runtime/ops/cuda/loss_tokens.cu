#include <cuda_fp16.h>

#include <algorithm>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/async_copy.cuh"
#include "runtime/ops/cuda/intrinsics.cuh"
#include "runtime/ops/cuda/loss.h"
#include "runtime/ops/cuda/metric_partials.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kTargetThreads = 128;
constexpr std::size_t kOtherSharedBytes = 2 * 1024;  // at most, of a block that stages rows

__global__ void __launch_bounds__(kTargetThreads)
    targets_kernel(TokenBatch batch, std::uint32_t first, std::uint32_t rows, std::uint32_t* targets) {
  const std::uint32_t row = blockIdx.x * kTargetThreads + threadIdx.x;
  if (row >= rows) return;
  const std::uint32_t sequence = batch.source.sequence;
  const std::uint32_t window = BatchRows(batch.order, batch.step)[(first + row) / sequence];
  targets[row] = batch.source.token(window, (first + row) % sequence + 1);
}

template <class T>
struct Problem {
  const T* logits;
  T* dlogits;  ///< May be null, or logits.
  const std::uint32_t* targets;
  MetricPartial* partials;
  std::uint32_t rows, columns, vocabulary;
  float gradient_scale;
};

/// exp(x - largest) * 2^kScaleBits, the latter for bf16 alone.
template <class T, int kScaleBits>
class Exponential {
 public:
  static_assert(sizeof(T) == 2 || kScaleBits == 0);
  explicit __device__ Exponential(float largest)
      : shift_(sizeof(T) == 2 ? fmaf(-kLog2e, largest, static_cast<float>(kScaleBits)) : -largest) {}
  __device__ __forceinline__ float operator()(float x) const {
    if constexpr (sizeof(T) == 2) {
      return exp2_approximate(fmaf(kLog2e, x, shift_));
    } else {
      return expf(x + shift_);
    }
  }

 private:
  static constexpr float kLog2e = 1.4426950408889634f;
  float shift_;
};

/// The largest of what it was given.
template <class T, int V>
class Largest {
 public:
  __device__ __forceinline__ void take(const float (&value)[V]) {
#pragma unroll
    for (const float x : value) single_ = fmaxf(single_, x);
  }
  __device__ __forceinline__ void take_pack(const T* row) {
    if constexpr (sizeof(T) == 2 && V % 2 == 0) {
      const auto pack = *reinterpret_cast<const Pack<__nv_bfloat162, V / 2>*>(row);
#pragma unroll
      for (const __nv_bfloat162 pair : pack.value) pair_ = __hmax2(pair_, pair);
    } else {
      float value[V];
      load<V>(row, value);
      take(value);
    }
  }
  __device__ float get() const { return fmaxf(single_, fmaxf(__low2float(pair_), __high2float(pair_))); }

 private:
  float single_ = -INFINITY;
  __nv_bfloat162 pair_ = __float2bfloat162_rn(-INFINITY);
};

/// V logits from column `c` on; those beyond the vocabulary as -infinity.
template <int V, class T>
__device__ __forceinline__ void read(const T* row, std::uint32_t c, std::uint32_t vocabulary, float (&value)[V]) {
  load<V>(row + c, value);
  if (c + V <= vocabulary) return;
#pragma unroll
  for (int k = 0; k < V; ++k) value[k] = c + k < vocabulary ? value[k] : -INFINITY;
}

/// The exponentials of kPacks times V columns of a thread, in f16: a second round over them needs neither the logits
/// nor the units that compute exponentials, of which a multiprocessor has few. Down to 2^-28 of the largest they have
/// three bits more than bf16; below 2^-38 they become 0.
template <int kPacks, int V>
class Kept {
 public:
  static constexpr int kScaleBits = 14;

  __device__ __forceinline__ void put(int pack, const float (&value)[V]) {
#pragma unroll
    for (int k = 0; k < V; k += 2) pairs_[pack * (V / 2) + k / 2] = __floats2half2_rn(value[k], value[k + 1]);
  }
  __device__ __forceinline__ void get(int pack, float (&value)[V]) const {
#pragma unroll
    for (int k = 0; k < V; k += 2) {
      const float2 pair = __half22float2(pairs_[pack * (V / 2) + k / 2]);
      value[k] = pair.x;
      value[k + 1] = pair.y;
    }
  }

 private:
  __half2 pairs_[kPacks * (V / 2)];
};
template <int V>
class Kept<0, V> {
 public:
  static constexpr int kScaleBits = 0;
};

template <int kThreads>
struct Shared {
  static_assert(kThreads / 32 <= 32 && 32 % (kThreads / 32) == 0);
  float largest[kThreads / 32];
  float totals[kThreads / 32];
  float target_logit;
};

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

/// Stores a pack that is not read again soon.
template <int V, class T>
__device__ __forceinline__ void stream_out(const float (&from)[V], T* to) {
  if constexpr (sizeof(T) * V == 16) {
    Pack<T, V> pack;
#pragma unroll
    for (int i = 0; i < V; ++i) pack.value[i] = from_float<T>(from[i]);
    __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
  } else {
    store<V>(from, to);
  }
}

/// The sum of this thread's exponentials, of which the first kPacks packs are kept.
template <int kThreads, int V, int kPacks, class T, class Exp>
__device__ __forceinline__ float sum_exponentials(const Problem<T>& p, const T* row, const Exp& exponential,
                                                  Kept<kPacks, V>& kept) {
  constexpr std::uint32_t kStep = kThreads * V;
  const std::uint32_t whole = p.vocabulary / V * V;  // columns in packs of the vocabulary alone
  float sums[2] = {};
  float value[V];
  const auto add = [&] {
#pragma unroll
    for (int k = 0; k < V; ++k) {
      value[k] = exponential(value[k]);
      sums[k % 2] += value[k];
    }
  };
  std::uint32_t c = threadIdx.x * V;
  if constexpr (kPacks > 0) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i, c += kStep) {
#pragma unroll
      for (float& x : value) x = -INFINITY;
      if (c < p.vocabulary) read<V>(row, c, p.vocabulary, value);
      add();
      kept.put(i, value);
    }
  } else {
#pragma unroll 2
    for (; c < whole; c += kStep) {
      load<V>(row + c, value);
      add();
    }
    if (c < p.vocabulary) {
      read<V>(row, c, p.vocabulary, value);
      add();
    }
  }
  return sums[0] + sums[1];
}

/// Of this thread's columns, but for the target's.
template <int kThreads, int V, int kPacks, class T, class Exp>
__device__ __forceinline__ void write_gradient(const Problem<T>& p, const T* row, const Exp& exponential,
                                               const Kept<kPacks, V>& kept, float factor, T* gradient) {
  constexpr std::uint32_t kStep = kThreads * V;
  float value[V];
  std::uint32_t c = threadIdx.x * V;
  if constexpr (kPacks > 0) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i, c += kStep) {
      if (c >= p.columns) break;
      kept.get(i, value);
#pragma unroll
      for (float& x : value) x *= factor;
      stream_out<V>(value, gradient + c);
    }
  } else {
    const std::uint32_t whole = p.vocabulary / V * V;
#pragma unroll 2
    for (; c < whole; c += kStep) {
      load<V>(row + c, value);
#pragma unroll
      for (int k = 0; k < V; ++k) value[k] = exponential(value[k]) * factor;
      stream_out<V>(value, gradient + c);
    }
    for (; c < p.columns; c += kStep) {
      read<V>(row, c, p.vocabulary, value);
#pragma unroll
      for (int k = 0; k < V; ++k) value[k] = exponential(value[k]) * factor;
      stream_out<V>(value, gradient + c);
    }
  }
}

/// Loss and hit of one row, the same in all threads but for rounding, and its gradient. A thread reads and writes the
/// same columns from first to last, so it needs to wait for no other's, and gradient and logits may share memory.
template <int kThreads, int V, int kPacks, class T>
__device__ MetricPartial one_row(const Problem<T>& p, const T* row, std::uint32_t target, T* gradient,
                                 Shared<kThreads>& shared) {
  constexpr std::uint32_t kStep = kThreads * V;
  const std::uint32_t first = threadIdx.x * V;
  const std::uint32_t whole = p.vocabulary / V * V;
  const bool has_target = target / V % kThreads == threadIdx.x;
  Largest<T, V> mine;
  std::uint32_t c = first;
#pragma unroll 4
  for (; c < whole; c += kStep) mine.take_pack(row + c);
  if (c < p.vocabulary) {
    float value[V];
    read<V>(row, c, p.vocabulary, value);
    mine.take(value);
  }
  if (has_target) shared.target_logit = to_float(row[target]);
  const float largest = block_max<kThreads>(mine.get(), shared.largest);
  const float target_logit = shared.target_logit;
  using Keep = Kept<kPacks, V>;
  const Exponential<T, Keep::kScaleBits> exponential(largest);
  Keep kept;
  const float total =
      block_total<kThreads>(sum_exponentials<kThreads, V, kPacks>(p, row, exponential, kept), shared.totals);
  bool hit = target_logit == largest;
  if (hit) {  // unless an earlier column is as large
    bool earlier = false;
    for (c = first; c < target; c += kStep) {
      for (int k = 0; k < V; ++k) earlier = earlier || (c + k < target && to_float(row[c + k]) == largest);
    }
    hit = !__syncthreads_or(earlier);
  }
  if (gradient != nullptr) {
    const float scale = isfinite(target_logit) ? p.gradient_scale : NAN;  // all else that is not finite is in `total`
    const float factor = scale / total;
    write_gradient<kThreads, V, kPacks>(p, row, exponential, kept, factor, gradient);
    if (has_target) gradient[target] = from_float<T>(exponential(target_logit) * factor - scale);
  }
  constexpr float kUnscaled = 1.0f / static_cast<float>(1 << Keep::kScaleBits);
  const double loss = static_cast<double>(logf(total * kUnscaled)) + (static_cast<double>(largest) - target_logit);
  return {loss, hit ? 1u : 0u};
}

/// Starts copying this thread's columns of a row to shared memory.
template <int kThreads, int V, class T>
__device__ __forceinline__ void fetch(const T* row, std::uint32_t columns, T* staged) {
  for (std::uint32_t c = threadIdx.x * V; c < columns; c += kThreads * V) {
    const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(staged + c));
    start_copy(to, row + c);
  }
}
/// A block takes one row after another. With two stages the next row is fetched while one is worked on; without any,
/// rows are read where they are, again and again.
template <class T, int V, int kThreads, int kStages, int kPacks>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads) rows_kernel(const Problem<T> p) {
  extern __shared__ uint4 memory[];
  __shared__ Shared<kThreads> shared;
  T* staged = reinterpret_cast<T*>(memory);
  MetricPartial sums{};
  wait_for_predecessor();
  std::uint32_t next_target = blockIdx.x < p.rows ? p.targets[blockIdx.x] : 0;
  int stage = 0;
  const auto fetch_row = [&](std::uint32_t row, int to) {
    if (row < p.rows) {
      fetch<kThreads, V>(p.logits + static_cast<std::size_t>(row) * p.columns, p.columns, staged + to * p.columns);
    }
    end_copies();
  };
  if (kStages > 0) fetch_row(blockIdx.x, 0);
  for (std::uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const std::size_t start = static_cast<std::size_t>(row) * p.columns;
    const std::uint32_t target = next_target;
    if (row + gridDim.x < p.rows) next_target = p.targets[row + gridDim.x];
    if (kStages == 2) fetch_row(row + gridDim.x, 1 - stage);
    if (kStages > 0) await_copies<kStages - 1>();
    const T* values = kStages > 0 ? staged + stage * p.columns : p.logits + start;
    const MetricPartial one =
        one_row<kThreads, V, kPacks>(p, values, target, p.dlogits == nullptr ? nullptr : p.dlogits + start, shared);
    sums.loss += one.loss;
    sums.correct += one.correct;
    if (kStages == 1) fetch_row(row + gridDim.x, 0);
    if (kStages == 2) stage = 1 - stage;
  }
  if (threadIdx.x == 0) p.partials[blockIdx.x] = sums;
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
template <class T, int V, int kThreads, int kStages, int kPacks>
std::uint32_t launch(const Problem<T>& p, int multiprocessors, cudaStream_t stream) {
  const auto kernel = rows_kernel<T, V, kThreads, kStages, kPacks>;
  const std::size_t bytes = kStages * sizeof(T) * static_cast<std::size_t>(p.columns);
  const std::uint32_t blocks =
      std::min({p.rows, kMaxBlocks, resident_blocks(kernel, kThreads, bytes, multiprocessors)});
  launch_early(kernel, static_cast<int>(blocks), kThreads, bytes, stream, p);
  return blocks;
}

/// `kPacks`: that hold a row, if they are kept; or 0.
template <class T, int V, int kThreads, int kPacks>
std::uint32_t launch_staged(const Problem<T>& p, int multiprocessors, cudaStream_t stream) {
  const std::size_t bytes = sizeof(T) * static_cast<std::size_t>(p.columns);
  const std::size_t most = shared_memory_limit() - kOtherSharedBytes;
  if (2 * bytes <= most) return launch<T, V, kThreads, 2, kPacks>(p, multiprocessors, stream);
  if (bytes <= most) return launch<T, V, kThreads, 1, kPacks>(p, multiprocessors, stream);
  return launch<T, V, kThreads, 0, kPacks>(p, multiprocessors, stream);
}

template <class T>
std::uint32_t launch_rows(const Problem<T>& p, int multiprocessors, cudaStream_t stream) {
  constexpr int kWide = 16 / sizeof(T);
  if (p.columns % kWide != 0 || !is_aligned(p.logits, 16) || !is_aligned(p.dlogits, 16)) {
    return launch<T, 1, 512, 0, 0>(p, multiprocessors, stream);
  }
  if (p.columns <= 2048 * kWide) return launch_staged<T, kWide, 128, 0>(p, multiprocessors, stream);
  if constexpr (kWide == 8) {
    if (p.columns <= 5 * 512 * kWide) return launch_staged<T, kWide, 512, 5>(p, multiprocessors, stream);
  }
  if (p.columns <= 4096 * kWide) return launch_staged<T, kWide, 512, 0>(p, multiprocessors, stream);
  if constexpr (kWide == 8) {
    if (p.columns <= 7 * 1024 * kWide) return launch_staged<T, kWide, 1024, 7>(p, multiprocessors, stream);
  }
  return launch_staged<T, kWide, 1024, 0>(p, multiprocessors, stream);
}

}  // namespace
}  // namespace cuda

void CudaLoss::token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                   std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                                   MetricSums* sums) {
  cuda::require(logits.shape.size() == 2 && vocabulary > 0 && vocabulary <= logits.dim(1),
                "token_cross_entropy: logits must be [rows, at least the vocabulary]");
  expect_tensor(logits, "token_cross_entropy: logits", dtype(), logits.shape);
  if (dlogits) expect_tensor(dlogits, "token_cross_entropy: dlogits", dtype(), logits.shape);
  const std::int64_t predictions = batch.count * batch.source.sequence;
  cuda::require(first_row >= 0 && first_row + logits.dim(0) <= predictions,
                "token_cross_entropy: rows beyond the batch's predictions");
  if (logits.dim(0) == 0) return;
  const auto rows = static_cast<std::uint32_t>(logits.dim(0));
  auto* partials = static_cast<cuda::MetricPartial*>(
      scratch().reserve(cuda::kMaxBlocks * sizeof(cuda::MetricPartial) + rows * sizeof(std::uint32_t), stream()));
  auto* targets = reinterpret_cast<std::uint32_t*>(partials + cuda::kMaxBlocks);
  cuda::targets_kernel<<<cuda::ceil_div(rows, cuda::kTargetThreads), cuda::kTargetThreads, 0, stream()>>>(
      batch, static_cast<std::uint32_t>(first_row), rows, targets);
  DDP_CUDA(cudaGetLastError());
  std::uint32_t blocks = 0;
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    blocks = cuda::launch_rows<T>(
        {logits.as<T>(), dlogits.as<T>(), targets, partials, rows, static_cast<std::uint32_t>(logits.dim(1)),
         static_cast<std::uint32_t>(vocabulary), gradient_scale},
        multiprocessors(), stream());
  });
  cuda::add_metric_partials(partials, blocks, rows, sums, stream());
}

}  // namespace ddptrain
