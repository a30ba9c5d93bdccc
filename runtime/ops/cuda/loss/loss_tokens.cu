#include <cuda_fp16.h>

#include <algorithm>
#include <numbers>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/ptx/async_copy.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr std::size_t kOtherSharedBytes = 2 * 1024;  // at most, of a block that stages rows

template <class T>
struct Problem {
  const T* logits;
  T* dlogits;  ///< May be null, or logits.
  MetricPartial* partials;
  std::uint32_t rows, columns, vocabulary;
  float gradient_scale;
};

/// The targets of a block's rows, of so many rows at a time.
class Targets {
 public:
  /// Target of the block's row number `count`, which is `row`. All threads call it, for one row after another.
  __device__ __forceinline__ std::uint32_t of(const Predictions& predictions, std::uint32_t row, std::uint32_t count,
                                              std::uint32_t rows) {
    if (count % kCount == 0) {
      const std::uint32_t later = row + threadIdx.x * gridDim.x;
      __syncthreads();
      if (threadIdx.x < kCount && later < rows) targets_[threadIdx.x] = predictions.target(later);
      __syncthreads();
    }
    return targets_[count % kCount];
  }

 private:
  static constexpr std::uint32_t kCount = 128;  // at most the threads of a block
  std::uint32_t targets_[kCount];
};

constexpr float kLog2e = std::numbers::log2e_v<float>;

/// Exponentials of some logits, relative to the largest of these.
struct Part {
  float largest, total;
};
/// Factor that turns exponentials relative to `from` into exponentials relative to `to`.
__device__ __forceinline__ float change_of_base(float from, float to) {
  return from == to ? 1.0f : exp2_approximate(kLog2e * (from - to));
}

template <int kThreads>
struct Shared {
  static_assert(kThreads / 32 <= 32 && 32 % (kThreads / 32) == 0);
  float largest[kThreads / 32];
  float totals[kThreads / 32];
  Part parts[2][kThreads / 32];  // of a row and the next
  Targets targets;
  float target_logit[2];
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

/// Whether a column of this thread before the target's is as large as the largest.
template <int kThreads, int V, class T>
__device__ __forceinline__ bool is_earlier(const T* row, std::uint32_t target, float largest) {
  bool earlier = false;
#pragma unroll 1
  for (std::uint32_t c = threadIdx.x * V; c < target; c += kThreads * V) {
    for (int k = 0; k < V; ++k) earlier = earlier || (c + k < target && to_float(row[c + k]) == largest);
  }
  return earlier;
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

/// What all threads know about a row.
struct RowSums {
  float largest, total;  ///< As in Part.
  float target_logit;
  bool hit;
};

/// Four pairs of neighbouring logits of a row, or of what they become.
using Words = std::uint32_t[4];

/// The columns of a thread that KeptRow does not keep in registers: none.
struct NoRest {
  __device__ void await() const {}
  template <class Work>
  __device__ void update(Work&&) const {}
  template <class Work>
  __device__ void consume(Work&&, const bf16*) const {}
};

/// The columns from kFirst on. They are in shared memory, in which a thread has packs of its own.
template <int kThreads, std::uint32_t kFirst>
class SharedRest {
 public:
  __device__ __forceinline__ SharedRest(uint4* memory, std::uint32_t columns) : packs_(memory), columns_(columns) {}

  /// Starts copying the columns of `row`, which may be null.
  __device__ __forceinline__ void fetch(const bf16* row) const {
    for (std::uint32_t c = first(); row != nullptr && c < columns_; c += kStep) fetch(row, c);
    end_copies();
  }
  __device__ __forceinline__ void await() const { await_copies<0>(); }
  /// work(words, column), which may change the words.
  template <class Work>
  __device__ __forceinline__ void update(Work&& work) const {
#pragma unroll 2
    for (std::uint32_t c = first(); c < columns_; c += kStep) {
      const uint4 pack = *at(c);
      Words words = {pack.x, pack.y, pack.z, pack.w};
      work(words, c);
      *at(c) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
  /// work(words, column) for the last time: then the columns of the row `next`, which may be null, take their place.
  template <class Work>
  __device__ __forceinline__ void consume(Work&& work, const bf16* next) const {
#pragma unroll 2
    for (std::uint32_t c = first(); c < columns_; c += kStep) {
      const uint4 pack = *at(c);
      const Words words = {pack.x, pack.y, pack.z, pack.w};
      work(words, c);
      if (next != nullptr) fetch(next, c);
    }
    end_copies();
  }

 private:
  static constexpr std::uint32_t kStep = kThreads * 8;

  static __device__ __forceinline__ std::uint32_t first() { return kFirst + threadIdx.x * 8; }
  __device__ __forceinline__ uint4* at(std::uint32_t column) const { return packs_ + (column - kFirst) / 8; }
  __device__ __forceinline__ void fetch(const bf16* row, std::uint32_t column) const {
    start_copy(static_cast<std::uint32_t>(__cvta_generic_to_shared(at(column))), row + column);
  }

  uint4* packs_;
  std::uint32_t columns_;
};

/// The same for bf16 and rows of at most kPacks * 8 * kThreads columns besides the rest, in one round over the logits
/// and with one barrier. A thread keeps the exponentials of its columns in f16, relative to the largest of these and
/// times 2^14: down to 2^-28 of the largest they have three bits more than bf16; below 2^-38 they become 0.
template <int kThreads, int kPacks, class Rest = NoRest>
class KeptRow {
 public:
  __device__ __forceinline__ KeptRow(const Problem<bf16>& p, const bf16* row, const Rest& rest = {})
      : p_(p), row_(row), rest_(rest) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) take(i);
    rest_.await();
    rest_.update([&](Words& words, std::uint32_t c) { compare(words, c); });
    largest_ = fmaxf(fmaxf(__low2float(pair_), __high2float(pair_)), -INFINITY);
    shift_ = largest_ == -INFINITY ? 0.0f : fmaf(-kLog2e, largest_, static_cast<float>(kScaleBits));
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (column(i) < p_.columns) keep(words_[i], sums);
    }
    rest_.update([&](Words& words, std::uint32_t) { keep(words, sums); });
    total_ = sums[0] + sums[1];
  }

  /// The last that reads the row. `parity`: of the number of rows that the block has had.
  __device__ __forceinline__ RowSums sums(std::uint32_t target, Shared<kThreads>& shared, int parity) const {
    if (has_column(target)) shared.target_logit[parity] = to_float(row_[target]);
    const Part all = of_row(shared.parts[parity]);
    const float target_logit = shared.target_logit[parity];
    bool hit = target_logit == all.largest;
    if (hit) {
      hit = !__syncthreads_or(largest_ == all.largest && is_earlier<kThreads, kPack>(row_, target, all.largest));
    }
    return {all.largest, all.total, target_logit, hit};
  }

  /// `next`: the row after this one. It may be null.
  __device__ __forceinline__ void write_gradient(const RowSums& sums, std::uint32_t target, bf16* gradient,
                                                 const bf16* next = nullptr) const {
    const float scale = isfinite(sums.target_logit) ? p_.gradient_scale : NAN;
    const float factor = scale / sums.total * change_of_base(largest_, sums.largest);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (column(i) < p_.columns) write(words_[i], factor, gradient + column(i));
    }
    rest_.consume([&](const Words& words, std::uint32_t c) { write(words, factor, gradient + c); }, next);
    if (has_column(target)) gradient[target] = from_float<bf16>(exponential(sums.target_logit) * factor - scale);
  }

  static __device__ __forceinline__ MetricPartial metrics(const RowSums& sums) {
    constexpr float kUnscaled = 1.0f / static_cast<float>(1 << kScaleBits);
    const double loss =
        static_cast<double>(logf(sums.total * kUnscaled)) + (static_cast<double>(sums.largest) - sums.target_logit);
    return {loss, sums.hit ? 1u : 0u};
  }

 private:
  static constexpr int kPack = 8;
  static constexpr int kScaleBits = 14;

  static __device__ __forceinline__ bool has_column(std::uint32_t c) { return c / kPack % kThreads == threadIdx.x; }
  static __device__ __forceinline__ std::uint32_t column(int pack) { return (pack * kThreads + threadIdx.x) * kPack; }
  __device__ __forceinline__ float exponential(float x) const { return exp2_approximate(fmaf(kLog2e, x, shift_)); }

  __device__ __forceinline__ void take(int pack) {
    Pack<std::uint32_t, 4> words = {{kNone, kNone, kNone, kNone}};
    const std::uint32_t c = column(pack);
    if (c < p_.columns) words = *reinterpret_cast<const Pack<std::uint32_t, 4>*>(row_ + c);
#pragma unroll
    for (int k = 0; k < 4; ++k) words_[pack][k] = words.value[k];
    compare(words_[pack], c);
  }
  /// Logits beyond the vocabulary are taken as -infinity.
  __device__ __forceinline__ void compare(Words& words, std::uint32_t c) {
    if (c + kPack > p_.vocabulary) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (c + 2 * k + 1 >= p_.vocabulary) words[k] = (words[k] & 0xFFFFu) | (kNone & 0xFFFF0000u);
        if (c + 2 * k >= p_.vocabulary) words[k] = kNone;
      }
    }
#pragma unroll
    for (const std::uint32_t& word : words) pair_ = __hmax2(pair_, reinterpret_cast<const __nv_bfloat162&>(word));
  }
  __device__ __forceinline__ void keep(Words& words, float (&sums)[2]) const {
#pragma unroll
    for (std::uint32_t& word : words) {
      const float a = exponential(__uint_as_float(word << 16)), b = exponential(__uint_as_float(word & 0xFFFF0000u));
      sums[0] += a;
      sums[1] += b;
      const __half2 half = __floats2half2_rn(a, b);
      word = reinterpret_cast<const std::uint32_t&>(half);
    }
  }
  static __device__ __forceinline__ void write(const Words& words, float factor, bf16* to) {
    float value[kPack];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float2 kept = __half22float2(reinterpret_cast<const __half2&>(words[k]));
      value[2 * k] = kept.x * factor;
      value[2 * k + 1] = kept.y * factor;
    }
    stream_out<kPack>(value, to);
  }
  /// Combines the parts of all threads.
  __device__ __forceinline__ Part of_row(Part (&parts)[kThreads / 32]) const {
    const float warps = warp_max(largest_);
    const float sum = warp_sum(total_ * change_of_base(largest_, warps));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = {warps, sum};
    __syncthreads();
    const Part part = parts[threadIdx.x % (kThreads / 32)];
    const float largest = warp_max(part.largest);
    const bool counts = threadIdx.x % 32 < kThreads / 32;
    return {largest, warp_sum(counts ? part.total * change_of_base(part.largest, largest) : 0.0f)};
  }

  static constexpr std::uint32_t kNone = 0xFF80FF80u;  // a pair of -infinity
  const Problem<bf16>& p_;
  const bf16* row_;
  Rest rest_;
  Words words_[kPacks];  // pairs of logits, then of exponentials
  __nv_bfloat162 pair_ = __float2bfloat162_rn(-INFINITY);
  float largest_, shift_, total_;
};

/// Starts copying this thread's columns of a row to shared memory.
template <int kThreads>
__device__ __forceinline__ void fetch(const Problem<bf16>& p, std::uint32_t row, bf16* staged) {
  if (row < p.rows) {
    const bf16* from = p.logits + static_cast<std::size_t>(row) * p.columns;
    for (std::uint32_t c = threadIdx.x * 8; c < p.columns; c += kThreads * 8) {
      const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(staged + c));
      start_copy(to, from + c);
    }
  }
  end_copies();
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

/// The same with KeptRow. With two stages in shared memory the next row is fetched while one is worked on; with none, a
/// row is read where it is. As soon as its exponentials are kept, a row's stage is free for the row kStages later.
template <int kThreads, int kStages, int kPacks>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    kept_rows_kernel(const Problem<bf16> p, const Predictions predictions) {
  extern __shared__ uint4 memory[];
  __shared__ Shared<kThreads> shared;
  using Row = KeptRow<kThreads, kPacks>;
  bf16* staged = reinterpret_cast<bf16*>(memory);
  MetricPartial metrics{};
  wait_for_predecessor();
  for (int s = 0; s < kStages; ++s) fetch<kThreads>(p, blockIdx.x + s * gridDim.x, staged + s * p.columns);
  std::uint32_t count = 0;
  for (std::uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x, ++count) {
    const std::size_t start = static_cast<std::size_t>(row) * p.columns;
    const std::uint32_t target = shared.targets.of(predictions, row, count, p.rows);
    if (kStages > 0) await_copies<kStages - 1>();
    bf16* stage = staged + (kStages == 2 ? count % 2 * p.columns : 0);
    const Row kept(p, kStages > 0 ? stage : p.logits + start);
    const RowSums sums = kept.sums(target, shared, count % 2);
    if (kStages > 0) fetch<kThreads>(p, row + kStages * gridDim.x, stage);
    if (p.dlogits != nullptr) kept.write_gradient(sums, target, p.dlogits + start);
    const MetricPartial one = Row::metrics(sums);
    metrics.loss += one.loss;
    metrics.correct += one.correct;
  }
  if (threadIdx.x == 0) p.partials[blockIdx.x] = metrics;
}

/// The same with rows that registers and shared memory hold together.
template <int kThreads, int kPacks>
__global__ void __launch_bounds__(kThreads, 1) long_rows_kernel(const Problem<bf16> p, const Predictions predictions) {
  extern __shared__ uint4 memory[];
  __shared__ Shared<kThreads> shared;
  using Rest = SharedRest<kThreads, kThreads * kPacks * 8>;
  using Row = KeptRow<kThreads, kPacks, Rest>;
  const Rest rest(memory, p.columns);
  const auto logits_of = [&](std::uint32_t row) {
    return row < p.rows ? p.logits + static_cast<std::size_t>(row) * p.columns : nullptr;
  };
  MetricPartial metrics{};
  wait_for_predecessor();
  rest.fetch(logits_of(blockIdx.x));
  std::uint32_t count = 0;
  for (std::uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x, ++count) {
    const std::uint32_t target = shared.targets.of(predictions, row, count, p.rows);
    const Row kept(p, logits_of(row), rest);
    const RowSums sums = kept.sums(target, shared, count % 2);
    const bf16* const next = logits_of(row + gridDim.x);
    if (p.dlogits != nullptr) {
      kept.write_gradient(sums, target, p.dlogits + static_cast<std::size_t>(row) * p.columns, next);
    } else {
      rest.fetch(next);
    }
    const MetricPartial one = Row::metrics(sums);
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
  auto* partials = scratch().reserve_elements<cuda::MetricPartial>(cuda::kMaxBlocks, stream());
  std::uint32_t blocks = 0;
  cuda::with_element(dtype(), [&]<class T>(T) {
    blocks = cuda::launch_predictions<T>(
        {logits.as<T>(), dlogits.as<T>(), partials, static_cast<std::uint32_t>(s.rows),
         static_cast<std::uint32_t>(s.columns), static_cast<std::uint32_t>(vocabulary), gradient_scale},
        {batch, static_cast<std::uint32_t>(first_row)}, multiprocessors(), stream());
  });
  cuda::add_metric_partials(partials, blocks, s.rows, batch.step, sums, stream());
}

}  // namespace ddptrain
