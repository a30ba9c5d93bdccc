#pragma once

#include <bit>

#include "runtime/ops/cuda/ptx/mma.cuh"

#define DDP_WGMMA 1

/// Those of runtime/ops/cuda/ptx/wgmma.cuh that emulated kernels use. A thread computes its own elements; where A is in
/// registers, it learns its rows from the four lanes that hold them.

namespace ddptrain::cuda {

inline void wgmma_fence() {}
inline void fence_async_proxy() { emulated::Block::current().fence_writes(); }
inline void wgmma_commit() { emulated::Block::current().end_group(); }
template <int kPending>
void wgmma_wait() {
  emulated::Block::current().await_groups(kPending);
  emulated::Block::current().meet_warp();
}
template <int kCount>
void take_registers() {}
template <int kCount>
void leave_registers() {}
template <int kCount>
void settle(float (&)[kCount]) {}
inline void compute_first(float, float*) {}
inline void barrier_wait(int barrier, int threads) { emulated::Block::current().meet(barrier, threads); }

struct SwizzledOperand {
  std::uint32_t address, tile_bytes;
  emulated::Block* block = &emulated::Block::current();
  const char* memory = block->shared_memory();

  explicit SwizzledOperand(std::uint32_t at, std::uint32_t bytes = 16) : address(at), tile_bytes(bytes) {}
  SwizzledOperand operator+(std::uint32_t bytes) const {
    SwizzledOperand moved = *this;
    moved.address += bytes;
    return moved;
  }
  float element(int row, int column) const {
    const auto r = static_cast<std::uint32_t>(row), c = static_cast<std::uint32_t>(column);
    const std::uint32_t at = address + c / 64 * tile_bytes + r * 128 + c % 64 * 2;
    if (c % 8 == 0) block->require_fenced(memory + emulated::swizzled(at));
    return emulated::swizzled_element(memory, at);
  }
};

/// d of m64nN, N = kCount / 2: element i of a thread is in row 16 warp + g + 8 (i / 2 % 2) and column_of(i).
inline int column_of(int i, int lane) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

/// A in registers. element(k, n): of B.
template <int kCount, class Element>
void multiply_fragments(float (&d)[kCount], const std::uint32_t (&a)[4], bool add, const Element& element) {
  const auto lanes = emulated::Block::current().exchange(std::to_array(a));
  const int lane = threadIdx.x % 32;
  std::array<std::array<float, 16>, 2> rows;
  for (int holder = 0; holder < 4; ++holder) {
    for (int i = 0; i < 4; ++i) {
      const float2 pair =
          unpack_bf16(lanes[static_cast<std::size_t>(lane / 4 * 4 + holder)][static_cast<std::size_t>(i)]);
      auto& row = rows[static_cast<std::size_t>(i % 2)];
      row[static_cast<std::size_t>(i / 2 * 8 + 2 * holder)] = pair.x;
      row[static_cast<std::size_t>(i / 2 * 8 + 2 * holder + 1)] = pair.y;
    }
  }
  emulated::Block::current().start_work([out = &d[0], rows, element, add, lane, in = &a[0], before = std::to_array(a)] {
    if (!std::equal(before.begin(), before.end(), in)) {
      emulated::Block::current().fail("registers of a product change while it runs");
    }
    for (int i = 0; i < kCount; ++i) {
      const auto& row = rows[static_cast<std::size_t>(i / 2 % 2)];
      const int n = column_of(i, lane);
      float sum = add ? out[i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += row[static_cast<std::size_t>(k)] * element(k, n);
      out[i] = sum;
    }
  });
}

template <bool kTransposedB>
void wgmma_m64n128k16(float (&d)[64], const std::uint32_t (&a)[4], SwizzledOperand b, bool add) {
  multiply_fragments(d, a, add, [b](int k, int n) { return kTransposedB ? b.element(k, n) : b.element(n, k); });
}
template <bool kTransposedB>
void wgmma_m64n64k16(float (&d)[32], const std::uint32_t (&a)[4], SwizzledOperand b, bool add) {
  multiply_fragments(d, a, add, [b](int k, int n) { return kTransposedB ? b.element(k, n) : b.element(n, k); });
}
inline void wgmma_m64n32k16_transposed(float (&d)[16], SwizzledOperand a, SwizzledOperand b, bool add) {
  const int lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
  emulated::Block::current().start_work([out = &d[0], a, b, add, lane, first] {
    for (int i = 0; i < 16; ++i) {
      const int m = first + i / 2 % 2 * 8, n = column_of(i, lane);
      float sum = add ? out[i] : 0.0f;
      for (int k = 0; k < 16; ++k) sum += a.element(k, m) * b.element(k, n);
      out[i] = sum;
    }
  });
}

/// A warp reads its rows of A. Others may be read, too: they must be there when the first warp starts.
template <bool kTransposedA>
void compare_rows(SwizzledOperand a) {
  std::uint64_t hash = 0;
  for (int m = 0; m < 64; ++m) {
    for (int k = 0; k < 16; ++k) {
      const float value = kTransposedA ? a.element(k, m) : a.element(m, k);
      hash = (hash ^ std::bit_cast<std::uint32_t>(value)) * 0x100000001B3;
    }
  }
  emulated::Block::current().require_same_in_warpgroup(hash);
}

/// Columns first_column to first_column + kCount * 2 - 1 of a product with both operands in shared memory.
template <bool kTransposedB, bool kTransposedA = false, int kCount>
void start_product(float (&d)[kCount], SwizzledOperand a, SwizzledOperand b, int first_column, bool add) {
  const int lane = threadIdx.x % 32, first_row = threadIdx.x % 128 / 32 * 16 + lane / 4;
  emulated::Block::current().start_work([out = &d[0], a, b, first_column, add, lane, first_row] {
    if (lane == 0) compare_rows<kTransposedA>(a);
    float rows[2][16], column[16];
    for (int i = 0; i < 2; ++i) {
      for (int k = 0; k < 16; ++k) {
        const int m = first_row + 8 * i;
        rows[i][k] = kTransposedA ? a.element(k, m) : a.element(m, k);
      }
    }
    for (int pair = 0; pair < kCount / 2; ++pair) {  // elements of a column: i and i + 2
      const int i = pair / 2 * 4 + pair % 2, n = first_column + column_of(i, lane);
      for (int k = 0; k < 16; ++k) column[k] = kTransposedB ? b.element(k, n) : b.element(n, k);
      for (int row = 0; row < 2; ++row) {
        float sum = add ? out[i + 2 * row] : 0.0f;
        for (int k = 0; k < 16; ++k) sum += rows[row][k] * column[k];
        out[i + 2 * row] = sum;
      }
    }
  });
}
inline void wgmma_m64n64k16(float (&d)[32], SwizzledOperand a, SwizzledOperand b, bool add) {
  start_product<false>(d, a, b, 0, add);
}
template <bool kTransposedB, bool kTransposedA = false>
void wgmma_m64n128k16(float (&d)[64], SwizzledOperand a, SwizzledOperand b, bool add) {
  start_product<kTransposedB, kTransposedA>(d, a, b, 0, add);
}
template <bool kTransposedB>
void wgmma_m64n256k16(float (&d)[64], float (&e)[64], SwizzledOperand a, SwizzledOperand b, bool add) {
  start_product<kTransposedB>(d, a, b, 0, add);
  start_product<kTransposedB>(e, a, b, 128, add);
}

}  // namespace ddptrain::cuda
