#pragma once

#include <cuda_bf16.h>

#include <cmath>
#include <cstdint>

#include "runtime/ops/cuda/attention/attention_head.cuh"
#include "runtime/ops/cuda/ptx/async_copy.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"

/// The kernels of attention_kernels.cu with m16n8k16 products: a warp owns 16 queries (or keys) and goes over the keys
/// (queries) in tiles of kOther. g = lane / 4 and q = lane % 4 as in mma.cuh. Tests also run them on the CPU
/// (tests/emulated).

namespace ddptrain::cuda::attention_mma {

using bf16 = __nv_bfloat16;

constexpr int kOwn = 16;    // rows of a warp
constexpr int kOther = 32;  // rows of a tile
constexpr int kMaxWarps = 8;

using attention::Head;
using attention::kLog2e;
using attention::quad_max;
using attention::quad_sum;
using attention::Shape;

struct Pointers {
  const bf16* qkv;
  bf16* out;
  float* statistics;
  const bf16* d_output;
  bf16* dqkv;
  const float* deltas;
};

/// Rows in shared memory, 16 bytes longer than a head: eight rows of 16 bytes then lie in different banks.
template <int kHead>
constexpr int kStride = kHead + 8;

/// Starts copying `rows` rows from `first` on; zeros beyond the sequence and the head.
template <int kHead>
__device__ __forceinline__ void fetch(const bf16* from, std::int64_t stride, int first, int rows, const Shape& shape,
                                      bf16* to) {
  constexpr int kChunks = kHead / 8;
  for (int i = threadIdx.x; i < rows * kChunks; i += blockDim.x) {
    const int row = first + i / kChunks, d = i % kChunks * 8;
    const bool inside = row < shape.sequence && d < shape.head_size;
    const bf16* source = inside ? from + row * stride + d : from;
    start_copy(shared_address(to + i / kChunks * kStride<kHead> + d), source, inside);
  }
}
__device__ __forceinline__ void await_fetches() {
  end_copies();
  await_copies<0>();
  __syncthreads();
}

/// product [16, kOther] = own rows times the rows of the tile, as accumulators of eight columns each.
template <int kHead>
__device__ __forceinline__ void multiply_rows(const bf16* own, const bf16* tile, float (&product)[kOther / 8][4]) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t a_at = shared_address(own + lane % 16 * kStride<kHead> + lane / 16 * 8);
  const std::uint32_t b_at = shared_address(tile + (lane / 16 * 8 + lane % 8) * kStride<kHead> + lane / 8 % 2 * 8);
#pragma unroll
  for (auto& columns : product) {
#pragma unroll
    for (float& value : columns) value = 0.0f;
  }
#pragma unroll
  for (int d = 0; d < kHead; d += 16) {
    std::uint32_t a[4], b[4];
    ldmatrix_x4(a, a_at + 2 * d);
#pragma unroll
    for (int j = 0; j < kOther / 16; ++j) {
      ldmatrix_x4(b, b_at + 2 * (16 * j * kStride<kHead> + d));
      mma_m16n8k16(product[2 * j], a, b[0], b[1]);
      mma_m16n8k16(product[2 * j + 1], a, b[2], b[3]);
    }
  }
}

/// sum [16, head] += weight [16, kOther] times the tile.
template <int kHead>
__device__ __forceinline__ void add_weighted(const float (&weight)[kOther / 8][4], const bf16* tile,
                                             float (&sum)[kHead / 8][4]) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t b_at = shared_address(tile + lane % 16 * kStride<kHead> + lane / 16 * 8);
#pragma unroll
  for (int j = 0; j < kOther / 16; ++j) {
    const float(&low)[4] = weight[2 * j];
    const float(&high)[4] = weight[2 * j + 1];
    const std::uint32_t a[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                                pack_bf16(high[2], high[3])};
#pragma unroll
    for (int d = 0; d < kHead; d += 16) {
      std::uint32_t b[4];
      ldmatrix_x4_transposed(b, b_at + 2 * (16 * j * kStride<kHead> + d));
      mma_m16n8k16(sum[d / 8], a, b[0], b[1]);
      mma_m16n8k16(sum[d / 8 + 1], a, b[2], b[3]);
    }
  }
}

/// Writes a warp's 16 rows from `first` on, rows g times factor[0] and rows g + 8 times factor[1].
template <int kHead>
__device__ __forceinline__ void write_rows(const float (&sum)[kHead / 8][4], float low, float high, int first, bf16* to,
                                           std::int64_t stride, const Shape& shape) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int j = 0; j < kHead / 8; ++j) {
    const int d = 8 * j + 2 * q;
    if (d >= shape.head_size) continue;
    if (first + g < shape.sequence) {
      *reinterpret_cast<std::uint32_t*>(to + (first + g) * stride + d) = pack_bf16(sum[j][0] * low, sum[j][1] * low);
    }
    if (first + g + 8 < shape.sequence) {
      *reinterpret_cast<std::uint32_t*>(to + (first + g + 8) * stride + d) =
          pack_bf16(sum[j][2] * high, sum[j][3] * high);
    }
  }
}

/// Column of element i (0, 1: row g; 2, 3: row g + 8) of accumulator j.
__device__ __forceinline__ int column_of(int j, int i) { return 8 * j + 2 * (threadIdx.x % 4) + i % 2; }

/// Online softmax of the scores in `p`, which it turns into exp(score - largest so far).
template <int kHead>
__device__ __forceinline__ void soften(float (&p)[kOther / 8][4], int key, int query, float scale, float (&largest)[2],
                                       float (&total)[2], float (&sum)[kHead / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float now = largest[half];
#pragma unroll
    for (int j = 0; j < kOther / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        p[j][i] = key + column_of(j, i) <= query + 8 * half ? p[j][i] * scale : -INFINITY;
        now = fmaxf(now, p[j][i]);
      }
    }
    now = quad_max(now);
    const float correction = exp2f(largest[half] - now);
    largest[half] = now;
    total[half] *= correction;
#pragma unroll
    for (int j = 0; j < kOther / 8; ++j) {
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        p[j][i] = exp2f(p[j][i] - now);
        total[half] += p[j][i];
      }
    }
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      sum[j][2 * half] *= correction;
      sum[j][2 * half + 1] *= correction;
    }
  }
}

template <int kHead>
__global__ void __launch_bounds__(32 * kMaxWarps) forward_kernel(const Pointers p, const Shape shape) {
  auto* const memory = reinterpret_cast<uint4*>(dynamic_shared_memory());
  const int rows = blockDim.x / 32 * kOwn, first = blockIdx.x * rows;
  auto* const queries = reinterpret_cast<bf16*>(memory);
  bf16* const keys = queries + rows * kStride<kHead>;
  bf16* const values = keys + kOther * kStride<kHead>;
  const Head head = Head::of_queries(shape);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int own = first + warp * kOwn;
  fetch<kHead>(p.qkv + head.at_query, head.row, first, rows, shape, queries);
  float largest[2] = {-INFINITY, -INFINITY}, total[2] = {}, sum[kHead / 8][4] = {};
  for (int key = 0; key < min(first + rows, shape.sequence); key += kOther) {
    __syncthreads();
    fetch<kHead>(p.qkv + head.at_key, head.row, key, kOther, shape, keys);
    fetch<kHead>(p.qkv + head.at_value, head.row, key, kOther, shape, values);
    await_fetches();
    if (key >= own + kOwn) continue;
    float scores[kOther / 8][4];
    multiply_rows<kHead>(queries + warp * kOwn * kStride<kHead>, keys, scores);
    soften<kHead>(scores, key, own + g, shape.scale * kLog2e, largest, total, sum);
    add_weighted<kHead>(scores, values, sum);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    total[half] = quad_sum(total[half]);
    const int query = own + g + 8 * half;
    if (threadIdx.x % 4 == 0 && query < shape.sequence) {
      p.statistics[head.at_statistics + query] = (largest[half] + log2f(total[half])) / kLog2e;
    }
  }
  write_rows<kHead>(sum, 1.0f / total[0], 1.0f / total[1], own, p.out + head.at, head.width, shape);
}

/// Values of a query that the backward pass needs. A query beyond the sequence has no gradient.
struct Query {
  float logarithm, delta;

  __device__ Query(const Pointers& p, const Head& head, const Shape& shape, int query)
      : logarithm(query < shape.sequence ? p.statistics[head.at_statistics + query] * kLog2e : INFINITY),
        delta(query < shape.sequence ? p.deltas[head.at_statistics + query] : 0.0f) {}
};

template <int kHead>
__global__ void __launch_bounds__(32 * kMaxWarps) dq_kernel(const Pointers p, const Shape shape) {
  auto* const memory = reinterpret_cast<uint4*>(dynamic_shared_memory());
  const int rows = blockDim.x / 32 * kOwn, first = blockIdx.x * rows;
  auto* const queries = reinterpret_cast<bf16*>(memory);
  bf16* const gradients = queries + rows * kStride<kHead>;
  bf16* const keys = gradients + rows * kStride<kHead>;
  bf16* const values = keys + kOther * kStride<kHead>;
  const Head head = Head::of_queries(shape);
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int own = first + warp * kOwn, own_row = warp * kOwn * kStride<kHead>;
  fetch<kHead>(p.qkv + head.at_query, head.row, first, rows, shape, queries);
  fetch<kHead>(p.d_output + head.at, head.width, first, rows, shape, gradients);
  const Query query[2] = {{p, head, shape, own + g}, {p, head, shape, own + g + 8}};
  float dq[kHead / 8][4] = {};
  for (int key = 0; key < min(first + rows, shape.sequence); key += kOther) {
    __syncthreads();
    fetch<kHead>(p.qkv + head.at_key, head.row, key, kOther, shape, keys);
    fetch<kHead>(p.qkv + head.at_value, head.row, key, kOther, shape, values);
    await_fetches();
    if (key >= own + kOwn) continue;
    float scores[kOther / 8][4], ds[kOther / 8][4];
    multiply_rows<kHead>(queries + own_row, keys, scores);
    multiply_rows<kHead>(gradients + own_row, values, ds);
#pragma unroll
    for (int j = 0; j < kOther / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = key + column_of(j, i) <= own + g + i / 2 * 8;
        const float probability = exp2f(scores[j][i] * shape.scale * kLog2e - query[i / 2].logarithm);
        ds[j][i] = seen ? probability * (ds[j][i] - query[i / 2].delta) : 0.0f;
      }
    }
    add_weighted<kHead>(ds, keys, dq);
  }
  write_rows<kHead>(dq, shape.scale, shape.scale, own, p.dqkv + head.at_query, head.row, shape);
}

/// From the scores of keys `key` and key + 8 with a tile of queries, and the gradients of the probabilities, to the
/// probabilities and the gradients of the scores.
__device__ __forceinline__ void weigh(const Pointers& p, const Head& head, const Shape& shape, int query, int key,
                                      float (&probability)[kOther / 8][4], float (&ds)[kOther / 8][4]) {
#pragma unroll
  for (int j = 0; j < kOther / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = query + column_of(j, i);
      const Query one(p, head, shape, column);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& value = probability[j][i + 2 * half];
        float& slope = ds[j][i + 2 * half];
        const bool seen = key + 8 * half <= column;
        value = seen ? exp2f(value * shape.scale * kLog2e - one.logarithm) : 0.0f;
        slope = value * (slope - one.delta);
      }
    }
  }
}

template <int kHead>
__global__ void __launch_bounds__(32 * kMaxWarps) dkv_kernel(const Pointers p, const Shape shape) {
  auto* const memory = reinterpret_cast<uint4*>(dynamic_shared_memory());
  const int rows = blockDim.x / 32 * kOwn, first = blockIdx.x * rows;
  auto* const keys = reinterpret_cast<bf16*>(memory);
  bf16* const values = keys + rows * kStride<kHead>;
  bf16* const queries = values + rows * kStride<kHead>;
  bf16* const gradients = queries + kOther * kStride<kHead>;
  const Head any = Head::of_key(shape, 0);  // they differ in their queries alone
  const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
  const int own = first + warp * kOwn, own_row = warp * kOwn * kStride<kHead>;
  fetch<kHead>(p.qkv + any.at_key, any.row, first, rows, shape, keys);
  fetch<kHead>(p.qkv + any.at_value, any.row, first, rows, shape, values);
  float dk[kHead / 8][4] = {}, dv[kHead / 8][4] = {};
  for (int i = 0; i < shape.queries(); ++i) {
    const Head head = Head::of_key(shape, i);
    for (int query = first / kOther * kOther; query < shape.sequence; query += kOther) {
      __syncthreads();
      fetch<kHead>(p.qkv + head.at_query, head.row, query, kOther, shape, queries);
      fetch<kHead>(p.d_output + head.at, head.width, query, kOther, shape, gradients);
      await_fetches();
      if (query + kOther <= own) continue;
      float probability[kOther / 8][4], ds[kOther / 8][4];
      multiply_rows<kHead>(keys + own_row, queries, probability);
      multiply_rows<kHead>(values + own_row, gradients, ds);
      weigh(p, head, shape, query, own + g, probability, ds);
      add_weighted<kHead>(probability, gradients, dv);
      add_weighted<kHead>(ds, queries, dk);
    }
  }
  write_rows<kHead>(dk, shape.scale, shape.scale, own, p.dqkv + any.at_key, any.row, shape);
  write_rows<kHead>(dv, 1.0f, 1.0f, own, p.dqkv + any.at_value, any.row, shape);
}

/// Thread blocks of a head, and warps of each block.
struct Grid {
  int blocks, warps;

  explicit Grid(int sequence)
      : blocks((sequence + kMaxWarps * kOwn - 1) / (kMaxWarps * kOwn)),
        warps((sequence + blocks * kOwn - 1) / (blocks * kOwn)) {}
};

}  // namespace ddptrain::cuda::attention_mma
