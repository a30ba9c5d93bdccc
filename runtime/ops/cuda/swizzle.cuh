#pragma once

#include <cstdint>

namespace ddptrain::cuda {

/// Where 16-byte chunk `chunk` of row `row` lies in shared memory at `address`. Rows have 128 bytes, with their chunks
/// at chunk XOR row % 8, as in tiles of tensor maps. So matrix instructions read and write eight rows from different
/// banks.
__device__ __forceinline__ std::uint32_t chunk_at(std::uint32_t address, std::uint32_t row, std::uint32_t chunk) {
  return address + row * 128 + ((chunk ^ row % 8) << 4);
}

}  // namespace ddptrain::cuda
