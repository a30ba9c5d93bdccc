#pragma once

#include "runtime/ops/cuda/mma.cuh"

/// Copies to shared memory come at once.

namespace ddptrain::cuda {

inline void init_barrier(std::uint64_t* barrier, int arrivals) {
  emulated::Block::current().init_barrier(barrier, arrivals);
}
inline void publish_barriers() {}
inline void expect_bytes(std::uint64_t* barrier, int bytes) { emulated::Block::current().arrive(barrier, bytes); }
inline void await_phase(std::uint64_t* barrier, int parity) { emulated::Block::current().await_phase(barrier, parity); }

inline void arrive(std::uint64_t* barrier) { emulated::Block::current().arrive(barrier, 0); }
inline void arrive_in_cluster(std::uint64_t* barrier, int rank) {
  emulated::Block& block = emulated::Block::current();
  block.arrive(block.shared_memory_of(rank) + shared_address(barrier), 0);
}
inline void meet_cluster() { emulated::Block::current().meet_cluster(); }

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
template <int kBlocks>
void load_tile_for_all(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier, CachePolicy) {
  emulated::Block& block = emulated::Block::current();
  const auto matrix = emulated::Matrix::of(map);
  const std::uint32_t barrier_address = shared_address(barrier);
  for (int rank = 0; rank < kBlocks; ++rank) {
    char* const memory = block.shared_memory_of(rank);
    const std::ptrdiff_t there = memory - block.shared_memory();
    each_of_tile(shared_address(to), matrix, column, row, [there](char* place, const __nv_bfloat16* element) {
      const __nv_bfloat16 zero{};
      std::memcpy(place + there, element == nullptr ? &zero : element, 2);
    });
    block.receive(memory + barrier_address, matrix.tile_rows * 128);
  }
}
inline void store_tile(const void* from, const CUtensorMap& map, int column, int row, CachePolicy) {
  emulated::Block::current().start_work(
      [address = shared_address(from), matrix = emulated::Matrix::of(map), column, row] {
        each_of_tile(address, matrix, column, row, [](const char* place, const __nv_bfloat16* element) {
          if (element != nullptr) std::memcpy(const_cast<__nv_bfloat16*>(element), place, 2);
        });
      },
      emulated::Block::Kind::stores);
}
inline void end_stores() { emulated::Block::current().end_group(emulated::Block::Kind::stores); }
template <int kPending>
void await_stores_read() {
  emulated::Block::current().await_groups(kPending, emulated::Block::Kind::stores);
}

inline void load_floats(float* to, const float* from, int count, std::uint64_t* barrier) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
  emulated::Block::current().receive(barrier, count * static_cast<long>(sizeof(float)));
}

}  // namespace ddptrain::cuda
