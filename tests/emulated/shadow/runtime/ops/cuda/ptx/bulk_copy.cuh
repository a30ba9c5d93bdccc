#pragma once

#include "runtime/ops/cuda/ptx/mma.cuh"

/// Copies to shared memory come at once.

namespace ddptrain::cuda {

inline void init_barrier(std::uint64_t* barrier, int arrivals) {
  emulated::Block::current().init_barrier(barrier, arrivals);
}
inline void publish_barriers() {}
inline void expect_bytes(std::uint64_t* barrier, int bytes) { emulated::Block::current().arrive(barrier, bytes); }
inline void await_phase(std::uint64_t* barrier, int parity) { emulated::Block::current().await_phase(barrier, parity); }

enum class CachePolicy : std::uint64_t { normal, evict_first };

/// Calls element(place in shared memory, place in the matrix, or null beyond its rows) for all of a tile.
template <class Element>
void each_of_tile(std::uint32_t address, const emulated::Matrix& matrix, int column, int row, const Element& element) {
  constexpr int kColumns = 64;
  emulated::Block& block = emulated::Block::current();
  if (address % 1024 != 0) block.fail("a swizzled tile is not aligned to 1024 bytes");
  if (row < 0 || column < 0 || column + kColumns > matrix.columns) block.fail("a tile lies outside its matrix");
  for (int r = 0; r < matrix.tile_rows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      const __nv_bfloat16* at = row + r < matrix.rows ? matrix.data + (row + r) * matrix.columns + column + c : nullptr;
      element(emulated::swizzled(address + static_cast<std::uint32_t>(r * 128 + c * 2)), at);
    }
  }
}

inline void load_tile(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier, CachePolicy) {
  const auto matrix = emulated::Matrix::of(map);
  each_of_tile(shared_address(to), matrix, column, row, [](char* place, const __nv_bfloat16* element) {
    const __nv_bfloat16 zero{};
    std::memcpy(place, element == nullptr ? &zero : element, 2);
  });
  emulated::Block::current().receive(barrier, matrix.tile_rows * 128);
}
inline void load_floats(float* to, const float* from, int count, std::uint64_t* barrier) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  emulated::Block::current().receive(barrier, count * static_cast<long>(sizeof(float)));
}

}  // namespace ddptrain::cuda
