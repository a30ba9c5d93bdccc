#pragma once

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/token_rows.cuh"
#include "runtime/ops/cuda/ptx/async_copy.cuh"

/// Cross-entropy of tokens in bf16 for GPUs and code before 9.0: a block takes one row after another, and keeps a row
/// in registers. See resident_rows.cuh for newer ones.

namespace ddptrain::cuda::token_rows {

/// What all threads know about a row.
struct RowSums {
  Part all;
  float target_logit;
  bool hit;

  __device__ __forceinline__ MetricPartial metrics() const { return metrics_of(all, target_logit, hit); }
};

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

/// A row of at most kPacks * 8 * kThreads columns besides the rest, in one round over the logits and with one barrier.
template <int kThreads, int kPacks, class Rest = NoRest>
class KeptRow {
 public:
  __device__ __forceinline__ KeptRow(const Problem<bf16>& p, const bf16* row, const Rest& rest = {})
      : p_(p), row_(row), rest_(rest) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) take(i);
    rest_.await();
    rest_.update([&](Words& words, std::uint32_t c) { take(words, c); });
    largest_ = largest_of(pair_);
    shift_ = shift_of(largest_);
    float sums[2] = {};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (column(i) < p_.columns) keep(words_[i], shift_, sums);
    }
    rest_.update([&](Words& words, std::uint32_t) { keep(words, shift_, sums); });
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
    return {all, target_logit, hit};
  }

  /// `next`: the row after this one. It may be null.
  __device__ __forceinline__ void write_gradient(const RowSums& sums, std::uint32_t target, bf16* gradient,
                                                 const bf16* next = nullptr) const {
    const float scale = scale_of(sums.target_logit, p_.gradient_scale);
    const float factor = scale / sums.all.total * change_of_base(largest_, sums.all.largest);
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (column(i) < p_.columns) write(words_[i], factor, gradient + column(i));
    }
    rest_.consume([&](const Words& words, std::uint32_t c) { write(words, factor, gradient + c); }, next);
    if (has_column(target))
      gradient[target] = from_float<bf16>(exponential(sums.target_logit, shift_) * factor - scale);
  }

 private:
  static __device__ __forceinline__ bool has_column(std::uint32_t c) { return c / kPack % kThreads == threadIdx.x; }
  static __device__ __forceinline__ std::uint32_t column(int pack) { return (pack * kThreads + threadIdx.x) * kPack; }

  __device__ __forceinline__ void take(int pack) {
    Pack<std::uint32_t, 4> words = {{kNone, kNone, kNone, kNone}};
    const std::uint32_t c = column(pack);
    if (c < p_.columns) words = *reinterpret_cast<const Pack<std::uint32_t, 4>*>(row_ + c);
#pragma unroll
    for (int k = 0; k < 4; ++k) words_[pack][k] = words.value[k];
    take(words_[pack], c);
  }
  __device__ __forceinline__ void take(Words& words, std::uint32_t c) {
    mask(words, static_cast<int>(c), static_cast<int>(p_.vocabulary));
    compare(words, pair_);
  }
  static __device__ __forceinline__ void write(const Words& words, float factor, bf16* to) {
    __stcs(reinterpret_cast<uint4*>(to), scaled(words, factor));
  }
  /// Combines the parts of all threads.
  __device__ __forceinline__ Part of_row(Part (&parts)[kThreads / 32]) const {
    const Part of_warp = part_of_warp(largest_, total_);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = of_warp;
    __syncthreads();
    const Part part = parts[threadIdx.x % (kThreads / 32)];
    const float largest = warp_max(part.largest);
    const bool counts = threadIdx.x % 32 < kThreads / 32;
    return {largest, warp_sum(counts ? part.total * change_of_base(part.largest, largest) : 0.0f)};
  }

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

/// With two stages in shared memory the next row is fetched while one is worked on; with none, a
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
    const MetricPartial one = sums.metrics();
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
    const MetricPartial one = sums.metrics();
    metrics.loss += one.loss;
    metrics.correct += one.correct;
  }
  if (threadIdx.x == 0) p.partials[blockIdx.x] = metrics;
}

}  // namespace ddptrain::cuda::token_rows
