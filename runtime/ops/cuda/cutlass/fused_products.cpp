#include "runtime/ops/cuda/cutlass/fused_products.h"

namespace ddptrain::cuda {

const char* name_of(FusedTile tile) {
  switch (tile) {
    case FusedTile::whole_128x256:
      return "CUTLASS, 128 x 256";
    case FusedTile::turns_128x128:
      return "CUTLASS, 128 x 128 by turns";
    case FusedTile::turns_64x256:
      return "CUTLASS, 64 x 256 by turns";
  }
  return "";
}

std::int64_t fused_partial_rows(FusedTile tile, std::int64_t m) {
  const std::int64_t height = tile == FusedTile::turns_64x256 ? 64 : 128;
  return (m + height - 1) / height;
}

bool suits_fused_sums(FusedTile tile, const FusedSizes& sizes) {
  return sizes.n % (tile == FusedTile::turns_128x128 ? 128 : 256) == 0;
}

}  // namespace ddptrain::cuda
