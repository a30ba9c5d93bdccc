#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

/// Products of linear layers that end in GELU or its gradient, by CUTLASS: bf16 with f32 sums, row-major, on GPUs that
/// run code of 9.0a. What the epilogue reads and writes besides c needs no pass of its own over memory.

namespace ddptrain::cuda {

/// How thread blocks share the work: rows x columns of c that a block computes, by both of its groups of warps or by
/// one while the other one writes.
enum class FusedTile : std::uint8_t { whole_128x256, turns_128x128, turns_64x256 };

inline constexpr std::array kFusedTiles = {FusedTile::whole_128x256, FusedTile::turns_128x128, FusedTile::turns_64x256};

const char* name_of(FusedTile tile);

/// Of c [m, n]; k is the length of the sums.
struct FusedSizes {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  int multiprocessors = 0;  ///< For the blocks, which stay until the end.
};

/// Whether this build, the current GPU and the sizes allow the functions below.
bool suits_fused_products(const FusedSizes& sizes);

/// pre [m, n] = x [m, k] weight^T [n, k] + bias [n]; y [m, n] = gelu of pre as it is stored. All aligned to 16 bytes.
void fused_linear_gelu(FusedTile tile, const FusedSizes& sizes, const void* x, const void* weight, const void* bias,
                       void* pre, void* y, cudaStream_t stream);

/// Rows of the partial sums of fused_gelu_gradient, and whether it can give them.
std::int64_t fused_partial_rows(FusedTile tile, std::int64_t m);
bool suits_fused_sums(FusedTile tile, const FusedSizes& sizes);

/// dpre [m, n] = dy [m, k] weight [k, n] * gelu'(pre [m, n]). `partials`, f32 [fused_partial_rows(m), n], where it is
/// not null, adds up to the sums over the rows of dpre. All aligned to 16 bytes.
void fused_gelu_gradient(FusedTile tile, const FusedSizes& sizes, const void* dy, const void* weight, const void* pre,
                         void* dpre, float* partials, cudaStream_t stream);

}  // namespace ddptrain::cuda
