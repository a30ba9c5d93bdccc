#pragma once

#include <cuda_bf16.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cuda/attention/attention_head.cuh"
#include "runtime/ops/cuda/attention/attention_sizes.h"
#include "runtime/ops/cuda/ptx/async_copy.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"

/// The kernel of short_attention_backward(). Each head of queries has keys of its own. A block keeps a whole head in
/// shared memory. A warp owns 16 queries, whose probabilities and gradients of scores it computes, then 16 rows of dq,
/// dk and dv. Rows beyond the sequence are zero, so nothing passes through them. g = lane / 4 and q = lane % 4 as in
/// mma.cuh. Tests also run it on the CPU (tests/emulated).

namespace ddptrain::cuda::attention_short {

using attention::Head;
using attention::kLog2e;
using attention::quad_sum;
using attention::Shape;
using bf16 = __nv_bfloat16;

struct Pointers {
  const bf16* qkv;
  const bf16* out;
  const float* statistics;
  const bf16* d_output;
  bf16* dqkv;
};

/// Rows of a head in shared memory. Chunk c of row r, 16 bytes, stands where chunk c ^ r % 8 would: a chunk of eight
/// rows then lies in different banks.
template <int kHead>
struct Rows {
  static constexpr int kChunks = kHead / 8;
  static constexpr int kRowBytes = kChunks * 16;

  char* memory;  // a multiple of kRowBytes

  __device__ __forceinline__ char* at(int row, int chunk) const {
    return memory + row * kRowBytes + (chunk ^ (row & 7)) * 16;
  }
  /// For 16 rows from `first` on, what a lane tells ldmatrix: rows `first` + `row` on and the chunk 0 or 1. The chunk
  /// that is 2 n further on stands at this address ^ 32 n.
  __device__ __forceinline__ std::uint32_t address(int first, int row, int chunk) const {
    return shared_address(at(first + row, chunk));
  }
};

/// Takes shared_bytes().
template <int kHead>
struct Memory {
  Rows<kHead> queries, keys, values, gradients;
  char* weights;

  __device__ __forceinline__ Memory(char* memory, int tiles) {
    const int bytes = tiles * kTile * Rows<kHead>::kRowBytes;
    queries.memory = memory;
    keys.memory = memory + bytes;
    values.memory = memory + 2 * bytes;
    gradients.memory = memory + 3 * bytes;
    weights = memory + 4 * bytes;
  }
  /// Address of the tile, which is on or below the diagonal.
  __device__ __forceinline__ char* probabilities(int query_tile, int key_tile) const {
    return weights + (query_tile * (query_tile + 1) / 2 + key_tile) * 2 * kWeightBytes;
  }
  __device__ __forceinline__ char* dscores(int query_tile, int key_tile) const {
    return probabilities(query_tile, key_tile) + kWeightBytes;
  }
};

/// Starts copying the 16 rows from `first` on; zeros beyond the sequence and the head.
template <int kHead>
__device__ __forceinline__ void fetch(const Pointers& p, const Head& head, int first, const Shape& shape,
                                      const Memory<kHead>& to) {
  constexpr int kChunks = Rows<kHead>::kChunks;
  const int chunk = threadIdx.x % kChunks;
  int row = first + threadIdx.x % 32 / kChunks;
  const bf16* qkv = p.qkv + row * head.row + 8 * chunk;
  const bf16* d_output = p.d_output + head.at + row * head.width + 8 * chunk;
#pragma unroll 1
  for (int step = 32 / kChunks; row < first + kTile; row += step) {
    const bool inside = row < shape.sequence && 8 * chunk < shape.head_size;
    const auto copy = [&](const Rows<kHead>& rows, const bf16* from) {
      start_copy(shared_address(rows.at(row, chunk)), inside ? from : p.qkv, inside);
    };
    copy(to.queries, qkv + head.at_query);
    copy(to.keys, qkv + head.at_key);
    copy(to.values, qkv + head.at_value);
    copy(to.gradients, d_output);
    qkv += step * head.row;
    d_output += step * head.width;
  }
  end_copies();
}

/// A row of out and a row of d_output: a quad shares a row, lane q has chunks q, q + 4 and so on. Odd rows begin with
/// the second four, so that two rows lie in different banks.
template <int kHead>
struct OutRow {
  uint4 parts[kHead / 32];

  static __device__ __forceinline__ int chunk_of(int row, int i) { return 4 * (i ^ row % 2) + threadIdx.x % 4; }
  __device__ __forceinline__ OutRow(const bf16* out, std::int64_t stride, int row, const Shape& shape) {
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
      const int column = 8 * chunk_of(row, i);
      parts[i] = make_uint4(0, 0, 0, 0);
      if (row < shape.sequence && column < shape.head_size) {
        parts[i] = *reinterpret_cast<const uint4*>(out + row * stride + column);
      }
    }
  }
  __device__ __forceinline__ float times(const Rows<kHead>& gradients, int row) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kHead / 32; ++i) {
      const uint4 other = *reinterpret_cast<const uint4*>(gradients.at(row, chunk_of(row, i)));
      const std::uint32_t a[4] = {parts[i].x, parts[i].y, parts[i].z, parts[i].w};
      const std::uint32_t b[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float2 x = unpack_bf16(a[j]), y = unpack_bf16(b[j]);
        sum = fmaf(x.x, y.x, fmaf(x.y, y.y, sum));
      }
    }
    return quad_sum(sum);
  }
};

struct Query {
  float logarithm, delta;
};

/// Writes a tile as four matrices of 8 x 8, in the order in which it is operand A.
__device__ __forceinline__ void put_tile(char* tile, const float (&value)[2][4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    reinterpret_cast<std::uint32_t*>(tile + 128 * i)[threadIdx.x % 32] =
        pack_bf16(value[i / 2][i % 2 * 2], value[i / 2][i % 2 * 2 + 1]);
  }
}

/// The probabilities of a warp's queries, and the gradients of their scores.
template <int kHead>
__device__ __forceinline__ void weigh(const Memory<kHead>& memory, int own, const Query (&query)[2], float scale_log2) {
  const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  std::uint32_t queries[kHead / 16][4], gradients[kHead / 16][4];
  const std::uint32_t queries_at = memory.queries.address(own * kTile, lane % 16, lane / 16);
  const std::uint32_t gradients_at = memory.gradients.address(own * kTile, lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    ldmatrix_x4(queries[k], queries_at ^ 32 * k);
    ldmatrix_x4(gradients[k], gradients_at ^ 32 * k);
  }
  for (int tile = 0; tile <= own; ++tile) {
    const int row = lane / 16 * 8 + lane % 8;
    const std::uint32_t keys_at = memory.keys.address(tile * kTile, row, lane / 8 % 2);
    const std::uint32_t values_at = memory.values.address(tile * kTile, row, lane / 8 % 2);
    float weight[2][4] = {}, slope[2][4] = {};
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      std::uint32_t b[4], c[4];
      ldmatrix_x4(b, keys_at ^ 32 * k);
      ldmatrix_x4(c, values_at ^ 32 * k);
      mma_m16n8k16(weight[0], queries[k], b[0], b[1]);
      mma_m16n8k16(slope[0], gradients[k], c[0], c[1]);
      mma_m16n8k16(weight[1], queries[k], b[2], b[3]);
      mma_m16n8k16(slope[1], gradients[k], c[2], c[3]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool seen = tile < own || 8 * j + 2 * q + i % 2 <= g + i / 2 * 8;
        const Query& one = query[i / 2];
        weight[j][i] = seen ? exp2_approximate(fmaf(weight[j][i], scale_log2, -one.logarithm)) : 0.0f;
        slope[j][i] = weight[j][i] * (slope[j][i] - one.delta);
      }
    }
    put_tile(memory.probabilities(own, tile), weight);
    put_tile(memory.dscores(own, tile), slope);
  }
}

/// sum [16, head] += a tile of weights, transposed or not, times 16 rows.
template <bool kTransposed, int kHead>
__device__ __forceinline__ void add_weighted(const char* tile, const Rows<kHead>& rows, int first,
                                             float (&sum)[kHead / 8][4]) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t b_at = rows.address(first, lane % 16, lane / 16);
  std::uint32_t a[4];
  if (kTransposed) {
    const int matrix = lane / 8 % 2 * 2 + lane / 16;
    ldmatrix_x4_transposed(a, shared_address(tile + 128 * matrix + lane % 8 * 16));
  } else {
    ldmatrix_x4(a, shared_address(tile + 16 * lane));
  }
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) {
    std::uint32_t b[4];
    ldmatrix_x4_transposed(b, b_at ^ 32 * k);
    mma_m16n8k16(sum[2 * k], a, b[0], b[1]);
    mma_m16n8k16(sum[2 * k + 1], a, b[2], b[3]);
  }
}

/// Word i of lane q becomes word q of lane i, in each quad.
__device__ __forceinline__ void transpose_in_quad(std::uint32_t (&x)[4]) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const std::uint32_t low = x[i], high = x[i + step];
      const std::uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, upper ? low : high, step);
      x[i] = upper ? other : low;
      x[i + step] = upper ? high : other;
    }
  }
}

/// Writes the 16 rows from `first` on, times `factor`.
template <int kHead>
__device__ __forceinline__ void write_rows(const float (&sum)[kHead / 8][4], float factor, int first, bf16* to,
                                           std::int64_t stride, const Shape& shape) {
  const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + g + 8 * half;
    auto* const at = reinterpret_cast<uint4*>(to + row * stride) + q;
#pragma unroll
    for (int d = 0; d < kHead; d += 32) {
      std::uint32_t part[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float(&two)[4] = sum[d / 8 + j];
        part[j] = pack_bf16(two[2 * half] * factor, two[2 * half + 1] * factor);
      }
      transpose_in_quad(part);
      if (row < shape.sequence && d + 8 * q < shape.head_size) {
        at[d / 8] = make_uint4(part[0], part[1], part[2], part[3]);
      }
    }
  }
}

template <int kHead>
__device__ __forceinline__ void write_gradients(const Memory<kHead>& memory, int own, int tiles, const Head& head,
                                                bf16* dqkv, const Shape& shape) {
  float dq[kHead / 8][4] = {};
  for (int key = 0; key <= own; ++key) {
    add_weighted<false>(memory.dscores(own, key), memory.keys, key * kTile, dq);
  }
  write_rows<kHead>(dq, shape.scale, own * kTile, dqkv + head.at_query, head.row, shape);
  float dk[kHead / 8][4] = {};
  for (int query = own; query < tiles; ++query) {
    add_weighted<true>(memory.dscores(query, own), memory.queries, query * kTile, dk);
  }
  write_rows<kHead>(dk, shape.scale, own * kTile, dqkv + head.at_key, head.row, shape);
  float dv[kHead / 8][4] = {};
  for (int query = own; query < tiles; ++query) {
    add_weighted<true>(memory.probabilities(query, own), memory.gradients, query * kTile, dv);
  }
  write_rows<kHead>(dv, 1.0f, own * kTile, dqkv + head.at_value, head.row, shape);
}

template <int kHead>
__global__ void __launch_bounds__(32 * kMaxTiles) backward_kernel(const Pointers p, const Shape shape) {
  char* const shared = dynamic_shared_memory();
  const int tiles = blockDim.x / 32, own = uniform(threadIdx.x / 32), g = threadIdx.x % 32 / 4;
  const Memory<kHead> memory(shared, tiles);
  const Head head = Head::of_queries(shape);
  const int first = own * kTile, low = first + g, high = low + 8;
  const OutRow<kHead> outs[2] = {{p.out + head.at, head.width, low, shape}, {p.out + head.at, head.width, high, shape}};
  const float* statistics = p.statistics + head.at_statistics;
  const float logarithms[2] = {low < shape.sequence ? statistics[low] * kLog2e : 0.0f,
                               high < shape.sequence ? statistics[high] * kLog2e : 0.0f};
  __syncwarp();  // keeps ptxas from moving these loads behind await_copies
  fetch(p, head, first, shape, memory);
  await_copies<0>();
  __syncthreads();
  const Query query[2] = {{logarithms[0], outs[0].times(memory.gradients, low)},
                          {logarithms[1], outs[1].times(memory.gradients, high)}};
  weigh(memory, own, query, shape.scale * kLog2e);
  __syncthreads();
  write_gradients(memory, own, tiles, head, p.dqkv, shape);
}

}  // namespace ddptrain::cuda::attention_short
