#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/async_copy.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/cuda/swiglu.cuh"
#include "runtime/ops/cuda/swizzle.cuh"

// A block has some columns of y, and reads their rows of the weight: as many bytes in each block, so that all
// multiprocessors end at the same time. With a SwiGLU a column has two of these lines: gate and up.
// Tensor cores multiply 64 elements of 16 lines with x in a step. The warps of a block take its steps in turn. So a
// warp adds up every eighth step of the same lines. At the end the block adds up these eight sums, in the order of the
// steps in a line. So an element of the product has the same bits wherever its line is in the block.
//
// The weight does not depend on the operation before. So a warp has a queue of steps that it begins to copy to shared
// memory before that operation ends, and refills as it uses them up.

namespace ddptrain::cuda::few_rows {

constexpr std::uint32_t kMostRows = 8;  // of x: columns of a tensor core's product
constexpr std::uint32_t kWarps = 8;
constexpr std::uint32_t kThreads = 32 * kWarps;
constexpr std::uint32_t kPack = 8;    // elements of 16 bytes
constexpr std::uint32_t kLines = 16;  // of a step
constexpr std::uint32_t kDepth = 64;  // elements of a line in a step
constexpr std::uint32_t kStepBytes = kLines * kDepth * sizeof(__nv_bfloat16);
constexpr std::uint32_t kQueued = 5;          // steps of a warp that are being copied
constexpr std::uint32_t kTerms = kWarps + 1;  // of an element of the product: sums of steps, and the bias

/// RMS norm of x + branch, for one row.
struct NormOfX {
  const __nv_bfloat16* branch;  ///< Null: there is no norm.
  const __nv_bfloat16* weight;
  float epsilon;
  __nv_bfloat16* sum;  ///< x + branch
};

struct FewRows {
  std::uint32_t rows;
  std::uint32_t in;
  std::uint32_t out;      ///< Rows of the weight, and columns of the product.
  std::uint32_t columns;  ///< The same, or half of it with a SwiGLU: columns of gates.
  std::uint32_t gated;    ///< 1 with a SwiGLU, else 0.
  const __nv_bfloat16* x;
  const __nv_bfloat16* weight;
  const __nv_bfloat16* bias;  ///< May be null.
  __nv_bfloat16* product;     ///< [rows, out]
  __nv_bfloat16* y;           ///< [rows, columns]: the SwiGLU of the product.
  NormOfX norm;               ///< For one row.

  __host__ __device__ std::uint32_t packs() const { return in / kPack; }
  /// Steps that cover a line. The last one may end beyond it.
  __host__ __device__ std::uint32_t steps() const { return (in + kDepth - 1) / kDepth; }
};

/// The columns of a block, and the lines of them: with a SwiGLU first those of all gates.
struct BlockPlace {
  std::uint32_t begin, count;  ///< Of the columns.
  std::uint32_t lines;

  __device__ explicit BlockPlace(const FewRows& a) {
    begin = column_before(a, blockIdx.x);
    count = column_before(a, blockIdx.x + 1) - begin;
    lines = count << a.gated;
  }
  /// Its row of the weight.
  __device__ std::uint32_t row_of(const FewRows& a, std::uint32_t line) const {
    return begin + line + (line < count ? 0 : a.columns - count);
  }

 private:
  static __device__ std::uint32_t column_before(const FewRows& a, std::uint32_t block) {
    return static_cast<std::uint32_t>(std::uint64_t{a.columns} * block / gridDim.x);
  }
};

/// A block's dynamic shared memory, from its beginning.
struct SharedMemory {
  char* queue;          ///< [kWarps, kQueued] steps
  uint4* x;             ///< [rows, packs_of_row(a)]
  uint4* norm_weight;   ///< [packs_of_row(a)], if there is a norm.
  float* terms;         ///< [lines, rows, kTerms]
  float* of_the_warps;  ///< [kWarps]

  __device__ explicit SharedMemory(const FewRows& a, std::uint32_t lines) {
    queue = dynamic_shared_memory();
    x = reinterpret_cast<uint4*>(queue + kWarps * kQueued * kStepBytes);
    norm_weight = x + a.rows * packs_of_row(a);
    terms = reinterpret_cast<float*>(x + staged_packs(a));
    of_the_warps = terms + lines * a.rows * kTerms;
  }
  /// One more than the steps have, so that tensor cores read the rows from different banks.
  static __host__ __device__ std::uint32_t packs_of_row(const FewRows& a) { return a.steps() * (kDepth / kPack) + 1; }
  static std::size_t bytes(const FewRows& a, std::uint32_t lines) {
    const std::size_t floats = static_cast<std::size_t>(lines) * a.rows * kTerms + kWarps;
    return kWarps * kQueued * kStepBytes + staged_packs(a) * sizeof(uint4) + floats * sizeof(float);
  }

 private:
  /// Of x and the norm's weight.
  static __host__ __device__ std::size_t staged_packs(const FewRows& a) {
    const std::uint32_t rows = a.norm.branch != nullptr ? a.rows + 1 : a.rows;
    return static_cast<std::size_t>(rows) * packs_of_row(a);
  }
};

/// Some lines of a block, and some elements of each.
struct Step {
  std::uint32_t tile;  ///< The lines from kLines * tile on.
  std::uint32_t part;  ///< The elements from kDepth * part on.

  /// The first one of a warp.
  __device__ Step(const FewRows& a, std::uint32_t warp) : tile(warp / a.steps()), part(warp % a.steps()) {}
  /// The warp's next one.
  __device__ __forceinline__ void advance(const FewRows& a) {
    for (part += kWarps; part >= a.steps(); part -= a.steps()) ++tile;
  }
};

static_assert(kDepth * sizeof(__nv_bfloat16) == 128, "chunk_at() takes lines of 128 bytes");

/// Begins to copy a step to `address`. What lies beyond the last line or element is zero.
__device__ __forceinline__ void fetch(const FewRows& a, const BlockPlace& b, const Step& step, std::uint32_t address) {
  constexpr std::uint32_t kChunks = kDepth / kPack;
  const std::uint32_t lane = threadIdx.x % 32, chunk = lane % kChunks;
  const std::uint32_t pack = step.part * kChunks + chunk;
#pragma unroll
  for (std::uint32_t first = 0; first < kLines; first += 32 / kChunks) {
    const std::uint32_t in_step = first + lane / kChunks, line = step.tile * kLines + in_step;
    const __nv_bfloat16* const from = a.weight + static_cast<std::size_t>(b.row_of(a, line)) * a.in + pack * kPack;
    start_copy(chunk_at(address, in_step, chunk), from, line < b.lines && pack < a.packs());
  }
  end_copies();
}

/// What does not depend on the operation before: the bias, zeros for the sums of warps, and the norm's weight.
__device__ __forceinline__ void prepare(const FewRows& a, const BlockPlace& b, const SharedMemory& s) {
  for (std::uint32_t i = threadIdx.x; i < b.lines * a.rows; i += kThreads) {
#pragma unroll
    for (std::uint32_t warp = 0; warp < kWarps; ++warp) s.terms[i * kTerms + warp] = 0.0f;
    s.terms[i * kTerms + kWarps] = a.bias != nullptr ? to_float(a.bias[b.row_of(a, i / a.rows)]) : 0.0f;
  }
  if (a.norm.branch == nullptr) return;
  for (std::uint32_t pack = threadIdx.x; pack < a.packs(); pack += kThreads) {
    s.norm_weight[pack] = reinterpret_cast<const uint4*>(a.norm.weight)[pack];
  }
}

/// Copies x to shared memory, with zeros up to the end of the last step.
__device__ __forceinline__ void put_x(const FewRows& a, const SharedMemory& s) {
  const std::uint32_t packs = SharedMemory::packs_of_row(a);
  for (std::uint32_t i = threadIdx.x; i < a.rows * packs; i += kThreads) {
    const std::uint32_t row = i / packs, pack = i % packs;
    s.x[i] = pack < a.packs() ? reinterpret_cast<const uint4*>(a.x)[row * a.packs() + pack] : uint4{};
  }
}

/// result(pair of a, pair of b) of eight elements.
template <class Result>
__device__ __forceinline__ uint4 of_pairs(const uint4& a, const uint4& b, const Result& result) {
  return {result(unpack_bf16(a.x), unpack_bf16(b.x)), result(unpack_bf16(a.y), unpack_bf16(b.y)),
          result(unpack_bf16(a.z), unpack_bf16(b.z)), result(unpack_bf16(a.w), unpack_bf16(b.w))};
}

/// put_x() of the RMS norm of x + branch, which are one row. A thread has the same packs all the time.
__device__ __forceinline__ void put_norm(const FewRows& a, const SharedMemory& s) {
  float squares = 0.0f;
  for (std::uint32_t pack = threadIdx.x; pack < SharedMemory::packs_of_row(a); pack += kThreads) {
    uint4 sum{};
    if (pack < a.packs()) {
      const uint4 x = reinterpret_cast<const uint4*>(a.x)[pack];
      sum = of_pairs(x, reinterpret_cast<const uint4*>(a.norm.branch)[pack], [&](float2 one, float2 other) {
        const std::uint32_t rounded = pack_bf16(one.x + other.x, one.y + other.y);
        const float2 of_pair = unpack_bf16(rounded);
        squares += of_pair.x * of_pair.x;
        squares += of_pair.y * of_pair.y;
        return rounded;
      });
      if (blockIdx.x == 0) reinterpret_cast<uint4*>(a.norm.sum)[pack] = sum;
    }
    s.x[pack] = sum;
  }
  squares = warp_sum(squares);
  const std::uint32_t lane = threadIdx.x % 32;
  if (lane == 0) s.of_the_warps[threadIdx.x / 32] = squares;
  __syncthreads();
  const float total = warp_sum(lane < kWarps ? s.of_the_warps[lane] : 0.0f);
  const float inverse = rsqrtf(total / static_cast<float>(a.in) + a.norm.epsilon);
  for (std::uint32_t pack = threadIdx.x; pack < a.packs(); pack += kThreads) {
    s.x[pack] = of_pairs(s.x[pack], s.norm_weight[pack], [&](float2 sum, float2 factor) {
      return pack_bf16(sum.x * (inverse * factor.x), sum.y * (inverse * factor.y));
    });
  }
}

/// sums += the step at `step` times its part of x. The fragments are those of mma_m16n8k16(). `x`: where this lane's
/// row of x is.
__device__ __forceinline__ void multiply(std::uint32_t step, std::uint32_t x, float (&sums)[4]) {
  constexpr std::uint32_t kChunk = 16;  // bytes
  const std::uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (std::uint32_t chunk = 0; chunk < kDepth / kPack; chunk += 4) {
    std::uint32_t of_x[4];
    ldmatrix_x4(of_x, x + (chunk + lane / 8) * kChunk);
#pragma unroll
    for (std::uint32_t half = 0; half < 2; ++half) {
      std::uint32_t of_lines[4];
      ldmatrix_x4(of_lines, chunk_at(step, lane % 16, chunk + 2 * half + lane / 16));
      mma_m16n8k16(sums, of_lines, of_x[2 * half], of_x[2 * half + 1]);
    }
  }
}

/// A warp's sums of a tile, to s.terms. `last`: its last step there.
__device__ __forceinline__ void put_terms(const FewRows& a, const BlockPlace& b, const Step& last,
                                          const float (&sums)[4], float* terms) {
  const std::uint32_t lane = threadIdx.x % 32, term = last.part % kWarps;  // the same for all its steps there
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t line = last.tile * kLines + lane / 4 + i / 2 * 8, row = lane % 4 * 2 + i % 2;
    if (line < b.lines && row < a.rows) terms[(line * a.rows + row) * kTerms + term] = sums[i];
  }
}

/// All steps of a warp. Its queue is full: `next` is the first step that is not in it.
__device__ __forceinline__ void multiply_steps(const FewRows& a, const BlockPlace& b, const SharedMemory& s,
                                               std::uint32_t warp, std::uint32_t queue, Step next) {
  const std::uint32_t lane = threadIdx.x % 32, row = min(lane % 8, a.rows - 1);  // no one reads the other columns
  const std::uint32_t x = shared_address(s.x + row * SharedMemory::packs_of_row(a));
  float sums[4] = {};
  std::uint32_t slot = 0;
  for (Step step(a, warp); step.tile * kLines < b.lines;) {
    await_copies<kQueued - 1>();
    __syncwarp();
    const std::uint32_t address = queue + slot * kStepBytes;
    multiply(address, x + step.part * (kDepth * sizeof(__nv_bfloat16)), sums);
    __syncwarp();  // all lanes have read the step
    fetch(a, b, next, address);
    next.advance(a);
    slot = slot + 1 < kQueued ? slot + 1 : 0;
    const Step done = step;
    step.advance(a);
    if (step.tile == done.tile) continue;
    put_terms(a, b, done, sums, s.terms);
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
  }
}

/// Adds up the terms of each element: the bias last.
__device__ __forceinline__ void store_columns(const FewRows& a, const BlockPlace& b, const float* terms) {
  for (std::uint32_t i = threadIdx.x; i < b.count * a.rows; i += kThreads) {
    const std::uint32_t row = i / b.count, column = i % b.count;
    float gate = 0.0f, product = 0.0f;
    for (std::uint32_t part = 0; part <= a.gated; ++part) {
      const float* const term = terms + ((part * b.count + column) * a.rows + row) * kTerms;
      float total = term[0];
#pragma unroll
      for (std::uint32_t warp = 1; warp < kTerms; ++warp) total += term[warp];
      const __nv_bfloat16 rounded = from_float<__nv_bfloat16>(total);
      a.product[static_cast<std::size_t>(row) * a.out + b.begin + column + part * a.columns] = rounded;
      gate = product;
      product = to_float(rounded);
    }
    if (a.gated == 0) continue;
    const float gated = swiglu_of<__nv_bfloat16>(gate, product);
    a.y[static_cast<std::size_t>(row) * a.columns + b.begin + column] = from_float<__nv_bfloat16>(gated);
  }
}

/// A row gives the same bits whatever the number of rows, or of blocks.
__global__ void __launch_bounds__(kThreads, 2) few_rows_kernel(const FewRows a) {
  const BlockPlace b(a);
  const SharedMemory s(a, b.lines);
  const auto warp = static_cast<std::uint32_t>(uniform(static_cast<int>(threadIdx.x) / 32));
  const std::uint32_t queue = shared_address(s.queue) + warp * kQueued * kStepBytes;
  Step next(a, warp);
#pragma unroll
  for (std::uint32_t slot = 0; slot < kQueued; ++slot) {
    fetch(a, b, next, queue + slot * kStepBytes);
    next.advance(a);
  }
  prepare(a, b, s);
  let_successor_start();
  wait_for_predecessor();
  if (a.norm.branch != nullptr) {
    put_norm(a, s);
  } else {
    put_x(a, s);
  }
  __syncthreads();
  multiply_steps(a, b, s, warp, queue, next);
  __syncthreads();
  store_columns(a, b, s.terms);
}

}  // namespace ddptrain::cuda::few_rows
