#include "runtime/ops/cuda/attention/heads/head_kernels.h"

#include <algorithm>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/heads/head_kernels.cuh"
#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda {

namespace {

using head_kernels::HeadOfGroup;
using head_kernels::Heads;
using head_kernels::kThreads;
using head_kernels::rotate_kernel;
using head_kernels::Rotation;

constexpr int kWarps = kThreads / 32;

// Blocks of rotate_kernel take several rows if as many as kBusyBlocks are left, and their rows fit kRowBytes.
constexpr std::int64_t kMostSamples = 4;
constexpr std::int64_t kBusyBlocks = 2048;
constexpr std::int64_t kRowBytes = 24 * 1024;

Heads heads_of(const AttentionShape& s) {
  return {static_cast<int>(s.heads), static_cast<int>(s.key_heads), static_cast<int>(s.head_size)};
}

/// HeadNorms of T. Rows are group by group.
template <class T>
struct Norms {
  const T* qkv;
  const T* query_weight;
  const T* key_weight;
  float* statistics;  ///< [rows, heads of queries and keys]
  Heads heads;
  std::uint32_t rows;
  float epsilon;

  __device__ std::size_t head_at(std::size_t row, int by_group) const {
    return row * heads.columns() + static_cast<std::size_t>(by_group) * heads.head_size;
  }
  __device__ float* statistic(std::size_t row, const HeadOfGroup& head) const {
    return statistics + row * (heads.heads + heads.key_heads) + head.group * (heads.queries() + 1) + head.in_group;
  }
  __device__ const T* weight(const HeadOfGroup& head) const { return head.is_query(heads) ? query_weight : key_weight; }
};

template <class T>
Norms<T> norms_of(const HeadNorms& n, float epsilon) {
  return {n.qkv.as<T>(), n.query_weight.as<T>(), n.key_weight.as<T>(),
          n.statistics,  heads_of(n.shape),      static_cast<std::uint32_t>(n.shape.batch * n.shape.sequence),
          epsilon};
}

/// A warp per head of a row. V neighbouring elements are read at once.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) normalise_kernel(const Norms<T> n, T* y) {
  const std::size_t index = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const std::size_t row = index / n.heads.all();
  if (row >= n.rows) return;
  const int by_group = static_cast<int>(index % n.heads.all());
  const HeadOfGroup head(n.heads, by_group);
  const T* const x = n.qkv + n.head_at(row, by_group);
  y += n.head_at(row, by_group);
  const int first = static_cast<int>(threadIdx.x % 32) * V;
  if (head.is_value(n.heads)) {
    for (int c = first; c < n.heads.head_size; c += 32 * V) {
      *reinterpret_cast<Pack<T, V>*>(y + c) = *reinterpret_cast<const Pack<T, V>*>(x + c);
    }
    return;
  }
  float squares = 0.0f;
  for (int c = first; c < n.heads.head_size; c += 32 * V) {
    float value[V];
    load<V>(x + c, value);
#pragma unroll
    for (const float v : value) squares += v * v;
  }
  const float inverse = rsqrtf(warp_sum(squares) / n.heads.head_size + n.epsilon);
  if (first == 0) *n.statistic(row, head) = inverse;
  for (int c = first; c < n.heads.head_size; c += 32 * V) {
    float value[V], weight[V];
    load<V>(x + c, value);
    load<V>(n.weight(head) + c, weight);
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] *= inverse * weight[i];
    store<V>(value, y + c);
  }
}

/// In place: from the gradient of y to that of qkv. A warp per head of queries and keys of a row.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) normalise_backward_kernel(const Norms<T> n, T* dqkv) {
  const int of_row = n.heads.heads + n.heads.key_heads, of_group = n.heads.queries() + 1;
  const std::size_t index = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const std::size_t row = index / of_row;
  if (row >= n.rows) return;
  const int number = static_cast<int>(index % of_row);
  const int by_group = number + number / of_group;  // past the values of the groups before
  const HeadOfGroup head(n.heads, by_group);
  const T* const x = n.qkv + n.head_at(row, by_group);
  T* const gradient = dqkv + n.head_at(row, by_group);
  const float inverse = *n.statistic(row, head);
  const int first = static_cast<int>(threadIdx.x % 32) * V;
  float slope = 0.0f;
  for (int c = first; c < n.heads.head_size; c += 32 * V) {
    float value[V], dy[V], weight[V];
    load<V>(x + c, value);
    load<V>(gradient + c, dy);
    load<V>(n.weight(head) + c, weight);
#pragma unroll
    for (int i = 0; i < V; ++i) slope += dy[i] * weight[i] * value[i] * inverse;
  }
  slope = warp_sum(slope) / n.heads.head_size;
  for (int c = first; c < n.heads.head_size; c += 32 * V) {
    float value[V], dy[V], weight[V];
    load<V>(x + c, value);
    load<V>(gradient + c, dy);
    load<V>(n.weight(head) + c, weight);
#pragma unroll
    for (int i = 0; i < V; ++i) dy[i] = (dy[i] * weight[i] - value[i] * inverse * slope) * inverse;
    store<V>(dy, gradient + c);
  }
}

/// Terms of the gradient of a weight: a row per head of queries, or of keys.
template <class T, int V, bool kQueries>
struct WeightGradient {
  Norms<T> n;
  const T* dy;

  __device__ void operator()(std::uint32_t index, std::uint32_t column, float (&value)[V]) const {
    const int in_row = kQueries ? n.heads.heads : n.heads.key_heads, queries = n.heads.queries();
    const std::size_t row = index / in_row;
    const int number = static_cast<int>(index % in_row);
    const int group = kQueries ? number / queries : number;
    const HeadOfGroup head(n.heads, group * (queries + 2) + (kQueries ? number % queries : queries));
    const std::size_t at = n.head_at(row, head.group * (queries + 2) + head.in_group) + column;
    const float inverse = *n.statistic(row, head);
    float x[V];
    load<V>(n.qkv + at, x);
    load<V>(dy + at, value);
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] *= x[i] * inverse;
  }
};

/// work(std::integral_constant<int, V>{}) with the widest packs that heads are made of.
template <class Work, class... Pointers>
void with_packs(std::int64_t head_size, Work&& work, Pointers... pointers) {
  const bool aligned = (... && is_aligned(pointers, 16));
  if (head_size % 4 == 0 && aligned) return work(std::integral_constant<int, 4>{});
  work(std::integral_constant<int, 1>{});
}

}  // namespace

void rotate_heads(const AttentionShape& shape, const Tensor& qkv, const float* frequencies,
                  const std::int64_t* first_position, bool forward, cudaStream_t stream) {
  const std::int64_t rows = shape.batch * shape.sequence;
  with_element(qkv.dtype, [&]<class T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = shape.head_size % (2 * kWide) == 0 && is_aligned(qkv.data, 16);
    const auto kernel = wide ? rotate_kernel<T, kWide> : rotate_kernel<T, 1>;
    const auto row_bytes = shape.columns() * static_cast<std::int64_t>(sizeof(T));
    const std::int64_t useful = std::min({shape.batch, rows / kBusyBlocks, kRowBytes / row_bytes});
    const std::int64_t samples = std::clamp(useful, std::int64_t{1}, kMostSamples);
    const auto bytes = static_cast<std::size_t>(shape.head_size / 2 * 8 + samples * row_bytes);
    reserve_shared_memory(kernel, bytes);
    const dim3 blocks(static_cast<std::uint32_t>(shape.sequence), ceil_div(shape.batch, samples));
    launch_rows(rows, kernel, blocks, kThreads, bytes, stream, qkv.as<T>(), heads_of(shape),
                Rotation{frequencies, first_position, static_cast<int>(shape.batch), static_cast<int>(shape.sequence),
                         static_cast<int>(samples), forward});
  });
}

void normalise_heads(const HeadNorms& norms, float epsilon, const Tensor& y, cudaStream_t stream) {
  const AttentionShape& s = norms.shape;
  const std::int64_t heads = s.batch * s.sequence * (s.heads + 2 * s.key_heads);
  with_element(y.dtype, [&]<class T>(T) {
    const auto run = [&](auto width) {
      launch_kernel(normalise_kernel<T, width.value>, ceil_div(heads, kWarps), kThreads, 0, stream,
                    norms_of<T>(norms, epsilon), y.as<T>());
    };
    with_packs(s.head_size, run, norms.qkv.data, norms.query_weight.data, norms.key_weight.data, y.data);
  });
}

void normalise_heads_backward(const HeadNorms& norms, const Tensor& dqkv, const Tensor& dquery_weight,
                              const Tensor& dkey_weight, bool accumulate, Scratch& scratch, cudaStream_t stream) {
  const AttentionShape& s = norms.shape;
  const std::int64_t rows = s.batch * s.sequence;
  with_element(dqkv.dtype, [&]<class T>(T) {
    const auto run = [&](auto width) {
      constexpr int V = width.value;
      const Norms<T> n = norms_of<T>(norms, 0.0f);
      sum_matrix_columns<V>(WeightGradient<T, V, true>{n, dqkv.as<T>()}, rows * s.heads, s.head_size, scratch,
                            accumulate, dquery_weight, stream);
      sum_matrix_columns<V>(WeightGradient<T, V, false>{n, dqkv.as<T>()}, rows * s.key_heads, s.head_size, scratch,
                            accumulate, dkey_weight, stream);
      if (rows == 0) return;
      launch_kernel(normalise_backward_kernel<T, V>, ceil_div(rows * (s.heads + s.key_heads), kWarps), kThreads, 0,
                    stream, n, dqkv.as<T>());
    };
    with_packs(s.head_size, run, norms.qkv.data, norms.query_weight.data, norms.key_weight.data, dqkv.data);
  });
}

}  // namespace ddptrain::cuda
