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

// A block has some columns of y, and reads their rows of the weight, which are neighbours in memory: as many bytes in
// each block, so that all multiprocessors end at the same time. A group of warps takes one of these lines at a time. A
// thread has the same places of all of them, and so needs the same elements of x. With a SwiGLU a column has two lines:
// the gate, and what it gates.
//
// The weight does not depend on the operation before. So a thread has a queue of copies to shared memory that it starts
// before that operation ends, and refills as it uses them up.

namespace ddptrain::cuda::few_rows {

constexpr std::uint32_t kPack = 8;  // elements that a thread reads at a time
constexpr std::uint32_t kMostRows = 8;

/// Warps of a block whose threads have kPacks packs of a line.
constexpr int most_warps(int packs) { return packs <= 4 ? 12 : 14; }

/// Blocks whose registers fit a multiprocessor: those of two products leave room for attention.
constexpr int least_blocks(int rows, int packs) {
  return rows == 1 && packs <= 3 ? resident_at_most(32 * most_warps(packs), 3) : 1;
}

constexpr int kMostQueued = 12;  // copies of a thread

/// What a thread does at a time, if it has kPacks packs of a line.
template <int kPacks>
struct Step {
  static constexpr int kLines = kPacks <= 2 ? 4 / kPacks : 1;  ///< One after the other would wait for its own sum.
  static constexpr int kCopies = kLines * kPacks;
  static constexpr int kQueued = kMostQueued / kCopies * kCopies;  ///< Copies under way.
};

/// An RMS norm of x, which is then `branch` and another term.
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
  std::uint32_t warps;    ///< Of a group.
  std::uint32_t groups;   ///< Of a block.
  const __nv_bfloat16* x;
  const __nv_bfloat16* weight;
  const __nv_bfloat16* bias;  ///< May be null.
  __nv_bfloat16* product;     ///< [rows, out]
  __nv_bfloat16* y;           ///< [rows, columns]: the SwiGLU of the product.
  NormOfX norm;               ///< For one row.

  __host__ __device__ std::uint32_t packs() const { return in / kPack; }
  __host__ __device__ std::uint32_t threads() const { return 32 * warps * groups; }
  __host__ __device__ std::uint32_t lines_of_column() const { return 1 + gated; }
  /// Floats that each line needs for a row: a term from each warp, and the bias.
  __host__ __device__ std::uint32_t terms() const { return warps + 1; }
  /// Zeros beyond the last one.
  __device__ uint4 pack_of_x(std::uint32_t row, std::uint32_t pack) const {
    return pack < packs() ? reinterpret_cast<const uint4*>(x)[row * packs() + pack] : uint4{};
  }
  __device__ const __nv_bfloat16* line(std::uint32_t column, std::uint32_t part) const {
    return weight + static_cast<std::size_t>(column + part * columns) * in;
  }
};

/// The columns of a block, and a thread's place in its group.
struct BlockPlace {
  std::uint32_t begin, count;  ///< Of the columns.
  std::uint32_t group, member;
  std::uint32_t columns;  ///< Of the group.
  std::uint32_t lines;    ///< The same, or with a SwiGLU first those of the gates, then the others.

  __device__ explicit BlockPlace(const FewRows& a) {
    begin = column_before(a, blockIdx.x);
    count = column_before(a, blockIdx.x + 1) - begin;
    group = threadIdx.x / (32 * a.warps);
    member = threadIdx.x % (32 * a.warps);
    columns = group < count ? (count - group + a.groups - 1) / a.groups : 0;
    lines = columns << a.gated;
  }
  __device__ std::uint32_t part_of(std::uint32_t line) const { return line < columns ? 0 : 1; }
  /// From `begin` on.
  __device__ std::uint32_t column_of(const FewRows& a, std::uint32_t line) const {
    return group + a.groups * (line < columns ? line : line - columns);
  }

 private:
  static __device__ std::uint32_t column_before(const FewRows& a, std::uint32_t block) {
    return static_cast<std::uint32_t>(std::uint64_t{a.columns} * block / gridDim.x);
  }
};

/// A block's dynamic shared memory, from its beginning.
template <int kRows, int kPacks>
struct SharedMemory {
  uint4* queue;         ///< [copies, threads]
  float* terms;         ///< [lines, kRows, a.terms()]
  float* of_the_warps;  ///< [warps]

  __device__ SharedMemory(const FewRows& a, std::uint32_t columns) {
    queue = reinterpret_cast<uint4*>(dynamic_shared_memory());
    terms = reinterpret_cast<float*>(queue + Step<kPacks>::kQueued * a.threads());
    of_the_warps = terms + (columns << a.gated) * kRows * a.terms();
  }
  /// `columns`: at least those of each block.
  static std::size_t bytes(const FewRows& a, std::uint32_t columns) {
    const std::size_t floats = (columns << a.gated) * kRows * a.terms() + a.warps * a.groups;
    return Step<kPacks>::kQueued * a.threads() * sizeof(uint4) + floats * sizeof(float);
  }
};

/// sum + the products of eight elements.
__device__ __forceinline__ float add_products(const uint4& a, const uint4& b, float sum) {
  const std::uint32_t left[] = {a.x, a.y, a.z, a.w}, right[] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 x = unpack_bf16(left[i]), y = unpack_bf16(right[i]);
    sum += x.x * y.x;
    sum += x.y * y.y;
  }
  return sum;
}

/// Starts the copies of a thread's packs of kLines lines from `line` on, to slots of its queue from `slot` on. Copies
/// beyond the last line, or the last pack, are zeros.
template <int kPacks>
__device__ __forceinline__ void fetch_lines(const FewRows& a, const BlockPlace& b, std::uint32_t line, uint4* queue,
                                            std::uint32_t slot) {
#pragma unroll
  for (std::uint32_t k = 0; k < Step<kPacks>::kLines; ++k) {
    const __nv_bfloat16* const of_line = a.line(b.begin + b.column_of(a, line + k), b.part_of(line + k));
#pragma unroll
    for (std::uint32_t i = 0; i < kPacks; ++i) {
      const std::uint32_t pack = b.member + i * 32 * a.warps;
      const bool inside = line + k < b.lines && pack < a.packs();
      start_copy(shared_address(queue + (slot + k * kPacks + i) * a.threads() + threadIdx.x), of_line + pack * kPack,
                 inside);
    }
  }
  end_copies();
}

/// What a block can do before the operation before has ended.
template <int kRows, int kPacks>
__device__ __forceinline__ void prepare(const FewRows& a, const BlockPlace& b, const SharedMemory<kRows, kPacks>& s) {
  constexpr std::uint32_t kLines = Step<kPacks>::kLines, kCopies = Step<kPacks>::kCopies;
#pragma unroll
  for (std::uint32_t slot = 0; slot < Step<kPacks>::kQueued; slot += kCopies) {
    fetch_lines<kPacks>(a, b, slot / kCopies * kLines, s.queue, slot);
  }
  for (std::uint32_t i = threadIdx.x; i < (b.count << a.gated) * kRows; i += a.threads()) {
    const std::uint32_t line = i / kRows, column = b.begin + line % b.count, part = line / b.count;
    s.terms[i * a.terms() + a.warps] = a.bias != nullptr ? to_float(a.bias[column + part * a.columns]) : 0.0f;
  }
}

/// result(pair of a, pair of b) of eight elements.
template <class Result>
__device__ __forceinline__ uint4 of_pairs(const uint4& a, const uint4& b, const Result& result) {
  return {result(unpack_bf16(a.x), unpack_bf16(b.x)), result(unpack_bf16(a.y), unpack_bf16(b.y)),
          result(unpack_bf16(a.z), unpack_bf16(b.z)), result(unpack_bf16(a.w), unpack_bf16(b.w))};
}

/// x = the RMS norm of its row + branch. All threads of a block call it: each group has the whole row.
template <int kPacks>
__device__ __forceinline__ void normalise(const FewRows& a, const BlockPlace& b, const uint4 (&weight)[kPacks],
                                          float* of_the_warps, uint4 (&x)[kPacks]) {
  const auto* const branch = reinterpret_cast<const uint4*>(a.norm.branch);
  uint4 added[kPacks];
#pragma unroll
  for (std::uint32_t i = 0; i < kPacks; ++i) {
    const std::uint32_t pack = b.member + i * 32 * a.warps;
    added[i] = pack < a.packs() ? branch[pack] : uint4{};
  }
  float squares = 0.0f;
#pragma unroll
  for (std::uint32_t i = 0; i < kPacks; ++i) {
    x[i] = of_pairs(x[i], added[i], [&](float2 one, float2 other) {
      const std::uint32_t rounded = pack_bf16(one.x + other.x, one.y + other.y);
      const float2 sum = unpack_bf16(rounded);
      squares += sum.x * sum.x;
      squares += sum.y * sum.y;
      return rounded;
    });
    const std::uint32_t pack = b.member + i * 32 * a.warps;
    if (blockIdx.x == 0 && b.group == 0 && pack < a.packs()) reinterpret_cast<uint4*>(a.norm.sum)[pack] = x[i];
  }
  squares = warp_sum(squares);
  const std::uint32_t lane = threadIdx.x % 32;
  if (lane == 0) of_the_warps[threadIdx.x / 32] = squares;
  __syncthreads();
  const float total = warp_sum(lane < a.warps ? of_the_warps[b.group * a.warps + lane] : 0.0f);
  const float inverse = rsqrtf(total / static_cast<float>(a.in) + a.norm.epsilon);
#pragma unroll
  for (std::uint32_t i = 0; i < kPacks; ++i) {
    x[i] = of_pairs(x[i], weight[i], [&](float2 sum, float2 factor) {
      return pack_bf16(sum.x * (inverse * factor.x), sum.y * (inverse * factor.y));
    });
  }
}

/// Each warp's terms of all lines of its group, to s.terms.
template <int kRows, int kPacks>
__device__ __forceinline__ void add_terms(const FewRows& a, const BlockPlace& b, const SharedMemory<kRows, kPacks>& s,
                                          const uint4 (&x)[kPacks]) {
  constexpr std::uint32_t kLines = Step<kPacks>::kLines, kCopies = Step<kPacks>::kCopies;
  constexpr std::uint32_t kQueued = Step<kPacks>::kQueued;
  std::uint32_t slot = 0;
  for (std::uint32_t line = 0; line < b.lines; line += kLines) {
    await_copies<kQueued / kCopies - 1>();
    uint4 weight[kLines][kPacks];
#pragma unroll
    for (std::uint32_t k = 0; k < kLines; ++k) {
#pragma unroll
      for (std::uint32_t i = 0; i < kPacks; ++i) {
        weight[k][i] = s.queue[(slot + k * kPacks + i) * a.threads() + threadIdx.x];
      }
    }
    fetch_lines<kPacks>(a, b, line + kQueued / kPacks, s.queue, slot);
    slot = slot + kCopies < kQueued ? slot + kCopies : 0;
#pragma unroll
    for (std::uint32_t r = 0; r < kRows; ++r) {
      float sum[kLines] = {};
#pragma unroll
      for (std::uint32_t i = 0; i < kPacks; ++i) {
        const uint4 input = kRows == 1 ? x[i] : a.pack_of_x(min(r, a.rows - 1), b.member + i * 32 * a.warps);
#pragma unroll
        for (std::uint32_t k = 0; k < kLines; ++k) sum[k] = add_products(weight[k][i], input, sum[k]);
      }
#pragma unroll
      for (float& value : sum) value = warp_sum(value);
      if (threadIdx.x % 32 > 0) continue;
#pragma unroll
      for (std::uint32_t k = 0; k < kLines; ++k) {
        if (line + k >= b.lines) break;
        const std::uint32_t of_block = b.part_of(line + k) * b.count + b.column_of(a, line + k);
        s.terms[(of_block * kRows + r) * a.terms() + b.member / 32] = sum[k];
      }
    }
  }
}

/// Adds up what the warps found, in their order, and then the bias.
template <int kRows>
__device__ __forceinline__ void store_columns(const FewRows& a, const BlockPlace& b, const float* terms) {
  for (std::uint32_t i = threadIdx.x; i < b.count * a.rows; i += a.threads()) {
    const std::uint32_t r = i / b.count, column = i % b.count;
    float gate = 0.0f, product = 0.0f;
    for (std::uint32_t part = 0; part <= a.gated; ++part) {
      const float* const term = terms + ((part * b.count + column) * kRows + r) * a.terms();
      float total = term[0];
      for (std::uint32_t w = 1; w < a.terms(); ++w) total += term[w];
      const __nv_bfloat16 rounded = from_float<__nv_bfloat16>(total);
      a.product[static_cast<std::size_t>(r) * a.out + b.begin + column + part * a.columns] = rounded;
      gate = product;
      product = to_float(rounded);
    }
    if (a.gated == 0) continue;
    const float gated = swiglu_of<__nv_bfloat16>(gate, product);
    a.y[static_cast<std::size_t>(r) * a.columns + b.begin + column] = from_float<__nv_bfloat16>(gated);
  }
}

/// kRows: at least a.rows. kPacks: at least a.packs() / (32 a.warps). The terms of a column are added up in the same
/// order for every number of rows.
template <int kRows, int kPacks>
__global__ void __launch_bounds__(32 * most_warps(kPacks), least_blocks(kRows, kPacks))
    few_rows_kernel(const FewRows a) {
  const BlockPlace b(a);
  const SharedMemory<kRows, kPacks> s(a, b.count);
  prepare(a, b, s);
  uint4 norm_weight[kPacks] = {}, x[kPacks];
  if (kRows == 1 && a.norm.branch != nullptr) {
#pragma unroll
    for (std::uint32_t i = 0; i < kPacks; ++i) {
      const std::uint32_t pack = b.member + i * 32 * a.warps;
      if (pack < a.packs()) norm_weight[i] = reinterpret_cast<const uint4*>(a.norm.weight)[pack];
    }
  }
  let_successor_start();
  wait_for_predecessor();
  if constexpr (kRows == 1) {
#pragma unroll
    for (std::uint32_t i = 0; i < kPacks; ++i) x[i] = a.pack_of_x(0, b.member + i * 32 * a.warps);
    if (a.norm.branch != nullptr) normalise(a, b, norm_weight, s.of_the_warps, x);
  }
  add_terms(a, b, s, x);
  __syncthreads();
  store_columns<kRows>(a, b, s.terms);
}

}  // namespace ddptrain::cuda::few_rows
