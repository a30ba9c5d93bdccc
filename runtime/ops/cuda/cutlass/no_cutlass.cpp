#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/ops/cuda/cutlass/fused_products.h"

// A build without CUTLASS, or without code for 9.0a.

namespace ddptrain::cuda {

bool suits_fused_products(const FusedSizes&) { return false; }

void fused_linear_gelu(FusedTile, const FusedSizes&, const void*, const void*, const void*, void*, void*,
                       cudaStream_t) {
  require(false, "fused products are not in this build");
}

void fused_gelu_gradient(FusedTile, const FusedSizes&, const void*, const void*, const void*, void*, float*,
                         cudaStream_t) {
  require(false, "fused products are not in this build");
}

}  // namespace ddptrain::cuda
