#include <algorithm>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/gemm/fp8.cuh"
#include "runtime/ops/cuda/gemm/gelu.cuh"
#include "runtime/ops/cuda/swiglu.cuh"

// A thread block takes a tile of 128 x 128 elements: it reads rows, writes rows, and writes columns from shared memory,
// each in pieces of 128 bytes at least.

namespace ddptrain::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 5;                  // of a multiprocessor, at least
constexpr int kTile = 128;                  // rows and columns of a block
constexpr int kPack = 8;                    // elements of a row that a thread takes
constexpr int kPacksOfRow = kTile / kPack;  // threads side by side
constexpr int kRowsOfPass = kThreads / kPacksOfRow;
constexpr int kStride = kTile / 4 + 1;        // words of a row in shared memory
constexpr int kWords = kTile * kStride + 32;  // with four more per 16 rows: the words of a warp's loads differ in bank
constexpr float kMargin = 2.0f;
constexpr float kLargestScale = 1e30f;
static_assert(kPacksOfRow == 16);

/// Eight elements, as they are read.
__device__ __forceinline__ uint4 fetch(const __nv_bfloat16* from) { return *reinterpret_cast<const uint4*>(from); }
__device__ __forceinline__ float element(const uint4& pack, int i) {
  const std::uint32_t words[] = {pack.x, pack.y, pack.z, pack.w};
  return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000u);
}

// Sources of FP8 values: operator() begins to read elements of a matrix [.., columns] from (row, column) on (a thread
// has kAhead rows under way), and value() works them out.

struct Plain {
  static constexpr std::uint32_t kAhead = 4;
  const __nv_bfloat16* x;
  using Fetched = uint4;

  __device__ Fetched operator()(std::size_t row, std::uint32_t column, std::uint32_t columns) const {
    return fetch(x + row * columns + column);
  }
  static __device__ float value(const Fetched& from, int i) { return element(from, i); }
};

struct Gelu {
  static constexpr std::uint32_t kAhead = 4;
  const __nv_bfloat16* pre;
  using Fetched = uint4;

  __device__ Fetched operator()(std::size_t row, std::uint32_t column, std::uint32_t columns) const {
    return fetch(pre + row * columns + column);
  }
  static __device__ float value(const Fetched& from, int i) { return gelu_of<__nv_bfloat16>(element(from, i)); }
};

struct GeluGradient {
  static constexpr std::uint32_t kAhead = 2;
  const __nv_bfloat16* pre;
  const __nv_bfloat16* dy;
  struct Fetched {
    uint4 pre, dy;
  };

  __device__ Fetched operator()(std::size_t row, std::uint32_t column, std::uint32_t columns) const {
    const std::size_t at = row * columns + column;
    return {fetch(pre + at), fetch(dy + at)};
  }
  static __device__ float value(const Fetched& from, int i) {
    return element(from.dy, i) * gelu_slope_of<__nv_bfloat16>(element(from.pre, i));
  }
};

struct Swiglu {
  static constexpr std::uint32_t kAhead = 2;
  const __nv_bfloat16* pre;
  struct Fetched {
    uint4 gate, up;
  };

  __device__ Fetched operator()(std::size_t row, std::uint32_t column, std::uint32_t columns) const {
    const __nv_bfloat16* gate = pre + row * 2 * columns + column;
    return {fetch(gate), fetch(gate + columns)};
  }
  static __device__ float value(const Fetched& from, int i) {
    return swiglu_of<__nv_bfloat16>(element(from.gate, i), element(from.up, i));
  }
};

/// The gradients of gates in the first half of a row, and of what they gate in the second.
struct SwigluGradient {
  static constexpr std::uint32_t kAhead = 2;
  const __nv_bfloat16* pre;
  const __nv_bfloat16* dy;
  struct Fetched {
    uint4 gate, up, dy;
    bool of_gate;
  };

  __device__ Fetched operator()(std::size_t row, std::uint32_t column, std::uint32_t columns) const {
    const std::uint32_t half = columns / 2;
    const bool of_gate = column < half;
    if (!of_gate) column -= half;
    const __nv_bfloat16* gate = pre + row * columns + column;
    return {fetch(gate), fetch(gate + half), fetch(dy + row * half + column), of_gate};
  }
  static __device__ float value(const Fetched& from, int i) {
    const float gate = element(from.gate, i), dy = element(from.dy, i);
    if (!from.of_gate) return swiglu_up_gradient<__nv_bfloat16>(gate, dy);
    return swiglu_gate_gradient<__nv_bfloat16>(gate, element(from.up, i), dy);
  }
};

__device__ __forceinline__ int word_at(int row, int word) { return row * kStride + row / 16 * 4 + word; }

/// Bytes (row i, column j) of word[i] become bytes (row j, column i).
__device__ __forceinline__ void transpose_bytes(std::uint32_t (&word)[4]) {
  const std::uint32_t a = __byte_perm(word[0], word[1], 0x5140), b = __byte_perm(word[2], word[3], 0x5140);
  const std::uint32_t c = __byte_perm(word[0], word[1], 0x7362), d = __byte_perm(word[2], word[3], 0x7362);
  word[0] = __byte_perm(a, b, 0x5410);
  word[1] = __byte_perm(a, b, 0x7632);
  word[2] = __byte_perm(c, d, 0x5410);
  word[3] = __byte_perm(c, d, 0x7632);
}

/// Writes the tile's columns as rows: a thread has 16 rows of four columns.
__device__ __forceinline__ void store_transposed(const std::uint32_t* tile, std::uint32_t first_row,
                                                 std::uint32_t first_column, const Fp8Matrix& to) {
  const int lane = threadIdx.x % 32, group = lane % 8, word = threadIdx.x / 32 * 4 + lane / 8;
  const std::uint32_t row = first_row + 16 * group, column = first_column + 4 * word;
  if (row >= to.rows || column >= to.columns) return;
  std::uint32_t block[4][4];  // [four rows][row, then column]
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) block[i][k] = tile[word_at(16 * group + 4 * i + k, word)];
    transpose_bytes(block[i]);
  }
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    *reinterpret_cast<uint4*>(to.transposed + static_cast<std::size_t>(column + k) * to.rows + row) =
        make_uint4(block[0][k], block[1][k], block[2][k], block[3][k]);
  }
}

/// Shared memory of a block, besides the tile.
struct Exchange {
  float largest[kWarps];
  float sums[kWarps][kTile];
};

/// The warp's sums over its rows. Lanes 0 to 15 have one half of the rows, lanes 16 to 31 the other.
__device__ __forceinline__ void store_warp_sums(float (&sums)[kPack], Exchange& exchange) {
#pragma unroll
  for (float& sum : sums) sum += __shfl_xor_sync(kAllLanes, sum, 16);
  const int lane = threadIdx.x % 32;
  if (lane < kPacksOfRow) store<kPack>(sums, &exchange.sums[threadIdx.x / 32][lane * kPack]);
}

/// partials [row tiles, columns]
__device__ __forceinline__ void store_partials(const Exchange& exchange, std::uint32_t first_column,
                                               std::uint32_t columns, float* partials) {
  const std::uint32_t column = first_column + threadIdx.x;
  if (threadIdx.x >= kTile || column >= columns) return;
  float total = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) total += exchange.sums[warp][threadIdx.x];
  partials[static_cast<std::size_t>(blockIdx.y) * columns + column] = total;
}

template <DType kFormat, bool kSums, class Source>
__global__ void __launch_bounds__(kThreads, resident_at_most(kThreads, kBlocks))
    quantize_kernel(const Source source, const Fp8Matrix to, float* partials) {
  constexpr std::uint32_t kAhead = Source::kAhead;
  static_assert(kTile % (kRowsOfPass * kAhead) == 0);
  __shared__ std::uint32_t tile[kWords];
  __shared__ __align__(32) Exchange exchange;
  const std::uint32_t first_row = blockIdx.y * kTile, first_column = blockIdx.x * kTile;
  const std::uint32_t offset = threadIdx.x % kPacksOfRow * kPack, column = first_column + offset;
  const std::uint32_t own_row = threadIdx.x / kPacksOfRow;
  const float scale = to.state->scale;
  float largest = 0.0f;
  float sums[kPack] = {};
#pragma unroll 1
  for (std::uint32_t begin = own_row; begin < kTile; begin += kAhead * kRowsOfPass) {
    typename Source::Fetched fetched[kAhead] = {};
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t row = first_row + begin + i * kRowsOfPass;
      if (row < to.rows && column < to.columns) fetched[i] = source(row, column, to.columns);
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kAhead; ++i) {
      const std::uint32_t local = begin + i * kRowsOfPass, row = first_row + local;
      if (row >= to.rows || column >= to.columns) continue;
      float value[kPack];
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        value[k] = Source::value(fetched[i], k);
        if (kSums) sums[k] += value[k];
      }
      largest = largest_magnitude(value, largest);
      const uint2 packed = pack_fp8<kFormat>(value, scale);
      *reinterpret_cast<uint2*>(to.values + static_cast<std::size_t>(row) * to.columns + column) = packed;
      tile[word_at(local, offset / 4)] = packed.x;
      tile[word_at(local, offset / 4 + 1)] = packed.y;
    }
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) exchange.largest[threadIdx.x / 32] = largest;
  if (kSums) store_warp_sums(sums, exchange);
  __syncthreads();
  store_transposed(tile, first_row, first_column, to);
  if (kSums) store_partials(exchange, first_column, to.columns, partials);
  if (threadIdx.x != 0) return;
#pragma unroll
  for (const float other : exchange.largest) largest = fmaxf(largest, other);
  note_largest(largest, to.state);
}

__global__ void __launch_bounds__(kThreads) transpose_kernel(const Fp8Matrix to) {
  __shared__ std::uint32_t tile[kWords];
  constexpr std::uint32_t kBytes = 16, kThreadsOfRow = kTile / kBytes, kRows = kThreads / kThreadsOfRow;
  const std::uint32_t first_row = blockIdx.y * kTile, first_column = blockIdx.x * kTile;
  const std::uint32_t offset = threadIdx.x % kThreadsOfRow * kBytes, column = first_column + offset;
  uint4 fetched[kTile / kRows] = {};
#pragma unroll
  for (std::uint32_t i = 0; i < kTile / kRows; ++i) {
    const std::uint32_t row = first_row + i * kRows + threadIdx.x / kThreadsOfRow;
    if (row >= to.rows || column >= to.columns) continue;
    fetched[i] = *reinterpret_cast<const uint4*>(to.values + static_cast<std::size_t>(row) * to.columns + column);
  }
#pragma unroll
  for (std::uint32_t i = 0; i < kTile / kRows; ++i) {
    std::uint32_t* words = tile + word_at(static_cast<int>(i * kRows + threadIdx.x / kThreadsOfRow), offset / 4);
    words[0] = fetched[i].x;
    words[1] = fetched[i].y;
    words[2] = fetched[i].z;
    words[3] = fetched[i].w;
  }
  __syncthreads();
  store_transposed(tile, first_row, first_column, to);
}

__global__ void __launch_bounds__(kThreads) renew_kernel(Fp8State* states, std::uint32_t count) {
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= count || states[i].largest == 0) return;
  const float largest = __uint_as_float(states[i].largest);
  states[i].largest = 0;
  if (!isfinite(largest)) return;  // the scale stays
  const float scale = fminf(states[i].limit / (kMargin * largest), kLargestScale);
  states[i].scale = scale;
  states[i].inverse_scale = 1.0f / scale;
}

dim3 tiles_of(const Fp8Matrix& to) { return {ceil_div(to.columns, kTile), ceil_div(to.rows, kTile)}; }

/// The first tensor of a state is computed twice, first to learn its magnitude.
template <DType kFormat, class Source>
void launch(const Source& source, const Fp8Matrix& to, const Fp8Sums& sums, cudaStream_t stream) {
  const auto kernel = sums.to ? quantize_kernel<kFormat, true, Source> : quantize_kernel<kFormat, false, Source>;
  const auto quantize = [&] { launch_kernel(kernel, tiles_of(to), kThreads, 0, stream, source, to, sums.partials); };
  if (to.first_use) {
    quantize();
    renew(to.state, 1, stream);
  }
  quantize();
  if (!sums.to) return;
  add_column_partials(sums.partials, ceil_div(to.rows, kTile), to.columns, sums.accumulate, std::array{sums.to},
                      stream);
}

const __nv_bfloat16* checked(const void* operand) {
  require(is_aligned(operand, 16), "FP8: an operand's address is no multiple of 16");
  return static_cast<const __nv_bfloat16*>(operand);
}

}  // namespace

float largest_of(DType format) { return format == DType::e4m3 ? 448.0f : 57344.0f; }

void renew(Fp8State* states, std::size_t count, cudaStream_t stream) {
  launch_kernel(renew_kernel, ceil_div(count, kThreads), kThreads, 0, stream, states, count);
}

void forget_largest(Fp8State* states, std::size_t count, cudaStream_t stream) {
  DDP_CUDA(cudaMemset2DAsync(&states->largest, sizeof(Fp8State), 0, sizeof(states->largest), count, stream));
}

std::size_t fp8_partials(std::int64_t rows, std::int64_t columns) {
  return ceil_div(rows, kTile) * static_cast<std::size_t>(columns);
}

void quantize(const void* x, const Fp8Matrix& to, const Fp8Sums& sums, cudaStream_t stream) {
  const Plain source{checked(x)};
  if (to.format == DType::e4m3) {
    launch<DType::e4m3>(source, to, sums, stream);
  } else {
    launch<DType::e5m2>(source, to, sums, stream);
  }
}

void quantize_gelu(const void* pre, const Fp8Matrix& to, cudaStream_t stream) {
  launch<DType::e4m3>(Gelu{checked(pre)}, to, {}, stream);
}

void quantize_gelu_gradient(const void* pre, const void* dy, const Fp8Matrix& to, const Fp8Sums& sums,
                            cudaStream_t stream) {
  launch<DType::e5m2>(GeluGradient{checked(pre), checked(dy)}, to, sums, stream);
}

void quantize_swiglu(const void* pre, const Fp8Matrix& to, cudaStream_t stream) {
  launch<DType::e4m3>(Swiglu{checked(pre)}, to, {}, stream);
}

void quantize_swiglu_gradient(const void* pre, const void* dy, const Fp8Matrix& to, cudaStream_t stream) {
  launch<DType::e5m2>(SwigluGradient{checked(pre), checked(dy)}, to, {}, stream);
}

void transpose(const Fp8Matrix& to, cudaStream_t stream) {
  launch_kernel(transpose_kernel, tiles_of(to), kThreads, 0, stream, to);
}

}  // namespace ddptrain::cuda
