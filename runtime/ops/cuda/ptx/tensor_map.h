#pragma once

#include <cuda.h>

#include <cstdint>

namespace ddptrain::cuda {

/// Describes a matrix of bf16 [rows, columns] in global memory for load_tile(), in tiles of tile_rows x 64, which lie
/// in shared memory as rows of 128 bytes whose 16-byte chunks are at chunk XOR row % 8. `matrix` is aligned to 16 bytes
/// and columns is a multiple of 8; both stay as they are while the map is used. Throws Error.
CUtensorMap swizzled_tiles(const void* matrix, std::int64_t rows, std::int64_t columns, int tile_rows);

}  // namespace ddptrain::cuda
