#pragma once

#include "runtime/ops/cuda/ptx/mma.cuh"

#define DDP_WGMMA 1

/// Those of runtime/ops/cuda/ptx/wgmma.cuh that emulated kernels use. A thread computes its own elements; where A is in
/// registers, it learns its rows from the four lanes that hold them.

namespace ddptrain::cuda {

inline void wgmma_fence() {}
inline void fence_async_proxy() {}
inline void wgmma_commit() { emulated::Block::current().end_group(); }
template <int kPending>
void wgmma_wait() {
  emulated::Block::current().await_groups(kPending);
}
template <int kCount>
void settle(float (&)[kCount]) {}
inline void barrier_wait(int barrier, int threads) { emulated::Block::current().meet(barrier, threads); }

struct SwizzledOperand {
  std::uint32_t address, tile_bytes;

  explicit SwizzledOperand(std::uint32_t at, std::uint32_t bytes = 16) : address(at), tile_bytes(bytes) {}
  SwizzledOperand operator+(std::uint32_t bytes) const { return SwizzledOperand(address + bytes, tile_bytes); }
  float element(int row, int column) const {
    return emulated::swizzled_element(address + static_cast<std::uint32_t>(row * 128 + column * 2));
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
  emulated::Block::current().start_work([out = &d[0], rows, element, add, lane] {
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

}  // namespace ddptrain::cuda
