#pragma once

#include "runtime/ops/cuda/mma.cuh"

/// Copies come at once.

namespace ddptrain::cuda {

inline void init_barrier(std::uint64_t* barrier, int arrivals) {
  emulated::Block::current().init_barrier(barrier, arrivals);
}
inline void publish_barriers() {}
inline void expect_bytes(std::uint64_t* barrier, int bytes) { emulated::Block::current().arrive(barrier, bytes); }
inline void await_phase(std::uint64_t* barrier, int parity) { emulated::Block::current().await_phase(barrier, parity); }

enum class CachePolicy : std::uint64_t { normal, evict_first };

inline void load_tile(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier, CachePolicy) {
  constexpr int kRows = 64, kColumns = 64;
  emulated::Block& block = emulated::Block::current();
  const auto matrix = emulated::Matrix::of(map);
  const std::uint32_t address = shared_address(to);
  if (address % 1024 != 0) block.fail("a swizzled tile is not aligned to 1024 bytes");
  if (row < 0 || column < 0 || row + kRows > matrix.rows || column + kColumns > matrix.columns) {
    block.fail("a tile lies outside its matrix");
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      std::memcpy(emulated::swizzled(address + static_cast<std::uint32_t>(r * 128 + c * 2)),
                  matrix.data + (row + r) * matrix.columns + column + c, 2);
    }
  }
  block.receive(barrier, kRows * kColumns * 2);
}

inline void load_floats(float* to, const float* from, int count, std::uint64_t* barrier) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  emulated::Block::current().receive(barrier, count * static_cast<long>(sizeof(float)));
}

}  // namespace ddptrain::cuda
