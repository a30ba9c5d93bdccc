#pragma once

#include <cstdint>

namespace ddptrain::cuda {

/// Warps that finish a tile of a product while the next one is multiplied (tile_product.cuh). Three leave the others
/// registers for larger products in an instruction. Seven are faster where sums have few terms. The results have the
/// same bits.
enum class FinishingWarps : std::uint8_t { three = 3, seven = 7 };

}  // namespace ddptrain::cuda
