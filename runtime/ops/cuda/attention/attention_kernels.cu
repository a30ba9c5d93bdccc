#include "runtime/ops/cuda/attention/attention_kernels.h"

#include <cmath>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/attention/attention_head.cuh"
#include "runtime/ops/cuda/reduce.cuh"

// Online softmax over tiles (Dao et al., "FlashAttention", 2022; the backward pass with one kernel for dq and one for
// dk and dv, so that nothing is added from two blocks). A block owns kTile queries (or keys), kRows per warp, and goes
// over the keys (queries) in tiles whose elements stand one per lane.

namespace ddptrain::cuda {

namespace {

constexpr int kTile = 32;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kRows = kTile / kWarps;

using attention::Head;
using attention::Shape;
using attention::shape_of;

/// Rows of f32, zero beyond the head's size, four floats apart from a multiple of 32 so that lanes may read a column.
template <int kHead>
struct Tile {
  static constexpr int kStride = kHead + 4;
  float value[kTile][kStride];

  /// Rows `first` on of a tensor whose rows lie `stride` elements apart.
  template <class T>
  __device__ void read(const T* from, std::int64_t stride, int first, const Shape& shape) {
    for (int i = threadIdx.x; i < kTile * kHead; i += kThreads) {
      const int row = first + i / kHead, d = i % kHead;
      const bool inside = row < shape.sequence && d < shape.head_size;
      value[i / kHead][d] = inside ? to_float(from[row * stride + d]) : 0.0f;
    }
  }
};

/// product[i] = own row i of this warp times row `lane` of the other tile.
template <int kHead>
__device__ __forceinline__ void multiply_rows(const Tile<kHead>& own, const Tile<kHead>& other,
                                              float (&product)[kRows]) {
  const int first = threadIdx.x / 32 * kRows, lane = threadIdx.x % 32;
#pragma unroll
  for (float& p : product) p = 0.0f;
#pragma unroll 4
  for (int d = 0; d < kHead; d += 4) {
    const float4 b = *reinterpret_cast<const float4*>(&other.value[lane][d]);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float4 a = *reinterpret_cast<const float4*>(&own.value[first + i][d]);
      product[i] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;
    }
  }
}

/// sum[i][d] += sum over lanes j of weight[i] (of lane j) times row j of the tile; lane l has columns l, l + 32, ...
template <int kHead>
__device__ __forceinline__ void add_weighted(const float (&weight)[kRows], const Tile<kHead>& tile,
                                             float (&sum)[kRows][kHead / 32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll 2
  for (int j = 0; j < kTile; ++j) {
    float value[kHead / 32];
#pragma unroll
    for (int d = 0; d < kHead / 32; ++d) value[d] = tile.value[j][32 * d + lane];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float w = __shfl_sync(kAllLanes, weight[i], j);
#pragma unroll
      for (int d = 0; d < kHead / 32; ++d) sum[i][d] += w * value[d];
    }
  }
}

/// Writes this warp's rows, times `factor`.
template <int kHead, class T>
__device__ __forceinline__ void write_rows(const float (&sum)[kRows][kHead / 32], const float (&factor)[kRows],
                                           int first, T* to, std::int64_t stride, const Shape& shape) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = first + static_cast<int>(threadIdx.x / 32) * kRows + i;
    if (row >= shape.sequence) continue;
#pragma unroll
    for (int d = 0; d < kHead / 32; ++d) {
      const int column = 32 * d + threadIdx.x % 32;
      if (column < shape.head_size) to[row * stride + column] = from_float<T>(sum[i][d] * factor[i]);
    }
  }
}

template <class T, int kHead>
__global__ void __launch_bounds__(kThreads) forward_kernel(const T* qkv, T* out, float* statistics, Shape shape) {
  extern __shared__ float4 memory[];
  auto* tiles = reinterpret_cast<Tile<kHead>*>(memory);
  Tile<kHead>&q = tiles[0], &k = tiles[1], &v = tiles[2];
  const Head head = Head::of_queries(shape);
  const int first = blockIdx.x * kTile, lane = threadIdx.x % 32;
  const int own = first + static_cast<int>(threadIdx.x / 32) * kRows;
  q.read(qkv + head.at_query, head.row, first, shape);
  float largest[kRows], total[kRows] = {}, sum[kRows][kHead / 32] = {};
#pragma unroll
  for (float& value : largest) value = -INFINITY;
  for (int key = 0; key < min(first + kTile, shape.sequence); key += kTile) {
    __syncthreads();
    k.read(qkv + head.at_key, head.row, key, shape);
    v.read(qkv + head.at_value, head.row, key, shape);
    __syncthreads();
    float p[kRows];
    multiply_rows(q, k, p);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float score = key + lane <= own + i ? p[i] * shape.scale : -INFINITY;
      const float now = fmaxf(largest[i], warp_max(score));
      const float correction = expf(largest[i] - now);
      p[i] = expf(score - now);
      total[i] = total[i] * correction + p[i];
      largest[i] = now;
#pragma unroll
      for (float& value : sum[i]) value *= correction;
    }
    add_weighted(p, v, sum);
  }
  float factor[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    total[i] = warp_sum(total[i]);
    factor[i] = 1.0f / total[i];
    if (lane == 0 && own + i < shape.sequence) statistics[head.at_statistics + own + i] = largest[i] + logf(total[i]);
  }
  write_rows<kHead>(sum, factor, first, out + head.at, head.width, shape);
}

/// deltas = sum over a head of d_output * out, a warp per row and head.
template <class T>
__global__ void __launch_bounds__(kThreads)
    delta_kernel(const T* out, const T* d_output, std::size_t count, float* deltas, Shape shape) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kWarps + threadIdx.x / 32;  // [batch, sequence, heads]
  if (i >= count) return;
  float sum = 0.0f;
  for (int d = threadIdx.x % 32; d < shape.head_size; d += 32) {
    sum += to_float(out[i * shape.head_size + d]) * to_float(d_output[i * shape.head_size + d]);
  }
  sum = warp_sum(sum);
  const std::size_t row = i / shape.heads, head = i % shape.heads;
  const std::size_t sample = row / shape.sequence, position = row % shape.sequence;
  if (threadIdx.x % 32 == 0) deltas[(sample * shape.heads + head) * shape.sequence + position] = sum;
}

template <class T, int kHead>
__global__ void __launch_bounds__(kThreads)
    dq_kernel(const T* qkv, const T* d_output, const float* statistics, const float* deltas, T* dqkv, Shape shape) {
  extern __shared__ float4 memory[];
  auto* tiles = reinterpret_cast<Tile<kHead>*>(memory);
  Tile<kHead>&q = tiles[0], &gradient = tiles[1], &k = tiles[2], &v = tiles[3];
  const Head head = Head::of_queries(shape);
  const int first = blockIdx.x * kTile, lane = threadIdx.x % 32;
  const int own = first + static_cast<int>(threadIdx.x / 32) * kRows;
  q.read(qkv + head.at_query, head.row, first, shape);
  gradient.read(d_output + head.at, head.width, first, shape);
  float logarithm[kRows], delta[kRows], dq[kRows][kHead / 32] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const std::size_t at = head.at_statistics + min(own + i, shape.sequence - 1);
    logarithm[i] = statistics[at];
    delta[i] = deltas[at];
  }
  for (int key = 0; key < min(first + kTile, shape.sequence); key += kTile) {
    __syncthreads();
    k.read(qkv + head.at_key, head.row, key, shape);
    v.read(qkv + head.at_value, head.row, key, shape);
    __syncthreads();
    float p[kRows], ds[kRows];
    multiply_rows(q, k, p);
    multiply_rows(gradient, v, ds);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool seen = key + lane <= own + i && own + i < shape.sequence;
      ds[i] = seen ? expf(p[i] * shape.scale - logarithm[i]) * (ds[i] - delta[i]) : 0.0f;
    }
    add_weighted(ds, k, dq);
  }
  float factor[kRows];
#pragma unroll
  for (float& f : factor) f = shape.scale;
  write_rows<kHead>(dq, factor, first, dqkv + head.at_query, head.row, shape);
}

template <class T, int kHead>
__global__ void __launch_bounds__(kThreads)
    dkv_kernel(const T* qkv, const T* d_output, const float* statistics, const float* deltas, T* dqkv, Shape shape) {
  extern __shared__ float4 memory[];
  auto* tiles = reinterpret_cast<Tile<kHead>*>(memory);
  Tile<kHead>&k = tiles[0], &v = tiles[1], &q = tiles[2], &gradient = tiles[3];
  const Head any = Head::of_key(shape, 0);  // they differ in their queries alone
  const int first = blockIdx.x * kTile, lane = threadIdx.x % 32;
  const int own = first + static_cast<int>(threadIdx.x / 32) * kRows;
  k.read(qkv + any.at_key, any.row, first, shape);
  v.read(qkv + any.at_value, any.row, first, shape);
  float dk[kRows][kHead / 32] = {}, dv[kRows][kHead / 32] = {};
  for (int number = 0; number < shape.queries(); ++number) {
    const Head head = Head::of_key(shape, number);
    for (int query = first; query < shape.sequence; query += kTile) {
      __syncthreads();
      q.read(qkv + head.at_query, head.row, query, shape);
      gradient.read(d_output + head.at, head.width, query, shape);
      __syncthreads();
      const std::size_t at = head.at_statistics + min(query + lane, shape.sequence - 1);
      const float logarithm = statistics[at], delta = deltas[at];
      float p[kRows], ds[kRows];
      multiply_rows(k, q, p);
      multiply_rows(v, gradient, ds);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const bool seen = own + i <= query + lane && query + lane < shape.sequence;
        p[i] = seen ? expf(p[i] * shape.scale - logarithm) : 0.0f;
        ds[i] = p[i] * (ds[i] - delta);
      }
      add_weighted(p, gradient, dv);
      add_weighted(ds, q, dk);
    }
  }
  float scale[kRows], one[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    scale[i] = shape.scale;
    one[i] = 1.0f;
  }
  write_rows<kHead>(dk, scale, first, dqkv + any.at_key, any.row, shape);
  write_rows<kHead>(dv, one, first, dqkv + any.at_value, any.row, shape);
}

/// `heads`: of queries or keys, in each sample.
template <class Kernel, class... Arguments>
void launch(Kernel kernel, const AttentionShape& shape, std::int64_t heads, std::size_t shared_bytes,
            cudaStream_t stream, Arguments... arguments) {
  reserve_shared_memory(kernel, shared_bytes);
  launch_kernel(kernel, attention::grid_of(shape, heads, ceil_div(shape.sequence, kTile)), kThreads, shared_bytes,
                stream, arguments..., shape_of(shape));
}

/// work(std::integral_constant<int, head size rounded up>{})
template <class Work>
void with_head(std::int64_t head_size, Work&& work) {
  require(head_size <= kMaxHeadSize, "attention: heads of more than 256 elements");
  attention::with_head<32, kMaxHeadSize>(head_size, work);
}

}  // namespace

void plain_attention(const AttentionShape& shape, const AttentionTensors& t, DType dtype, cudaStream_t stream) {
  with_element(dtype, [&]<class T>(T) {
    with_head(shape.head_size, [&](auto head) {
      launch(forward_kernel<T, head.value>, shape, shape.heads, 3 * sizeof(Tile<head.value>), stream,
             static_cast<const T*>(t.qkv), static_cast<T*>(t.out), t.statistics);
    });
  });
}

void attention_deltas(const AttentionShape& shape, const AttentionTensors& t, DType dtype, float* deltas,
                      cudaStream_t stream) {
  const std::int64_t rows = shape.batch * shape.sequence * shape.heads;
  with_element(dtype, [&]<class T>(T) {
    launch_kernel(delta_kernel<T>, ceil_div(rows, kWarps), kThreads, 0, stream, static_cast<const T*>(t.out),
                  static_cast<const T*>(t.d_output), rows, deltas, shape_of(shape));
  });
}

void plain_attention_backward(const AttentionShape& shape, const AttentionTensors& t, DType dtype, const float* deltas,
                              cudaStream_t stream) {
  with_element(dtype, [&]<class T>(T) {
    const auto *qkv = static_cast<const T*>(t.qkv), *d_output = static_cast<const T*>(t.d_output);
    const float* statistics = t.statistics;
    with_head(shape.head_size, [&](auto head) {
      constexpr std::size_t kBytes = 4 * sizeof(Tile<head.value>);
      launch(dq_kernel<T, head.value>, shape, shape.heads, kBytes, stream, qkv, d_output, statistics, deltas,
             static_cast<T*>(t.dqkv));
      launch(dkv_kernel<T, head.value>, shape, shape.key_heads, kBytes, stream, qkv, d_output, statistics, deltas,
             static_cast<T*>(t.dqkv));
    });
  });
}

}  // namespace ddptrain::cuda
