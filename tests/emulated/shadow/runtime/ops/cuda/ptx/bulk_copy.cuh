#pragma once

#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"

/// Copies to shared memory come at random times.

namespace ddptrain::cuda {

inline void init_barrier(std::uint64_t* barrier, int arrivals) {
  emulated::Block::current().init_barrier(barrier, arrivals);
}
inline void publish_barriers() {}
inline void expect_bytes(std::uint64_t* barrier, int bytes) { emulated::Block::current().arrive(barrier, bytes); }
inline void await_phase(std::uint64_t* barrier, int parity) { emulated::Block::current().await_phase(barrier, parity); }

/// Copies a tile to block `block` of the cluster: zeros where it is outside of the matrix.
inline void start_tile(int block, void* to, const emulated::Matrix& matrix, int column, int row,
                       std::uint64_t* barrier) {
  constexpr int kChunks = 8, kElements = 8;  // of a row of the tile; of a chunk
  emulated::Block& running = emulated::Block::current();
  const std::uint32_t address = shared_address(to);
  if (address % 1024 != 0) running.fail("a swizzled tile is not aligned to 1024 bytes");
  if (row < 0 || column < 0) running.fail("a tile begins before its matrix");
  char* const memory = running.shared_memory(block);
  const auto copy = [=] {
    for (int i = 0; i < matrix.tile_rows * kChunks; ++i) {
      const std::int64_t r = row + i / kChunks, c = column + i % kChunks * kElements;
      char* const place = memory + emulated::swizzled(address + static_cast<std::uint32_t>(i) * 16);
      if (r < matrix.rows && c < matrix.columns) {
        std::memcpy(place, matrix.data + r * matrix.columns + c, 16);
      } else {
        std::memset(place, 0, 16);
      }
    }
  };
  running.start_copy(block, running.there(block, barrier), matrix.tile_rows * 128, copy);
}

inline void load_tile(void* to, const CUtensorMap& map, int column, int row, std::uint64_t* barrier, CachePolicy) {
  start_tile(emulated::Block::current().rank(), to, emulated::Matrix::of(map), column, row, barrier);
}
inline void load_tile_to(std::uint16_t blocks, void* to, const CUtensorMap& map, int column, int row,
                         std::uint64_t* barrier, CachePolicy) {
  for (int block = 0; block < 16; ++block) {
    if ((blocks >> block & 1) != 0) start_tile(block, to, emulated::Matrix::of(map), column, row, barrier);
  }
}
inline void load_bytes(void* to, const void* from, int bytes, std::uint64_t* barrier) {
  emulated::Block& block = emulated::Block::current();
  block.start_copy(block.rank(), barrier, bytes, [=] { std::memcpy(to, from, static_cast<std::size_t>(bytes)); });
}
inline void arrive(std::uint64_t* barrier) { emulated::Block::current().arrive(barrier, 0); }
inline void store_bytes(void* to, const void* from, int bytes) {
  emulated::Block::current().start_store(static_cast<char*>(to), static_cast<const char*>(from),
                                         static_cast<std::size_t>(bytes));
}
inline void await_stores_read() { emulated::Block::current().await_stores_read(); }
inline void await_stores() { emulated::Block::current().await_stores(); }

inline std::uint32_t block_in_cluster() { return static_cast<std::uint32_t>(emulated::Block::current().rank()); }
inline void arrive_in(std::uint32_t block, std::uint64_t* barrier) {
  emulated::Block& running = emulated::Block::current();
  running.arrive(running.there(static_cast<int>(block), barrier), 0);
}
inline void synchronize_cluster() { emulated::Block::current().meet_cluster(); }
inline void arrive_at_cluster() { emulated::Block::current().arrive_at_cluster(); }
inline void await_cluster() { emulated::Block::current().await_cluster(); }
template <class T>
T* in_block(std::uint32_t block, T* object) {
  return reinterpret_cast<T*>(emulated::Block::current().there(static_cast<int>(block), object));
}

}  // namespace ddptrain::cuda
