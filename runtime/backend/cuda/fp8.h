#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ddptrain::cuda {

/// FP8 formats (Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433).
enum class Fp8 : std::uint8_t { none, e4m3, e5m2 };

/// A matrix in FP8, on the device; the element it stands for is value * *inverse_scale.
struct Fp8Matrix {
  void* values = nullptr;      ///< [rows, columns], where wanted.
  void* transposed = nullptr;  ///< [columns, rows], where wanted.
  float* inverse_scale = nullptr;
};

/// Scaling that lags by one use ("delayed scaling"): what a tensor is scaled by follows from the largest magnitude at
/// its last use, and that of this use is noted meanwhile, so a tensor is read once. Device memory, zero at first.
struct Fp8Scale {
  std::uint32_t largest = 0;  ///< Of the last use; magnitudes as the bits of an f32, which grow with it.
  std::uint32_t next = 0;
  std::uint32_t arrived = 0;  ///< Thread blocks that have added theirs to `next`.
};

/// Fills `to` from bf16 [rows, columns], both multiples of 16. Magnitudes of more than twice scale->largest are cut
/// off. `first_use`: scale->largest is taken from this tensor.
void quantize(const void* from, std::int64_t rows, std::int64_t columns, Fp8 format, Fp8Scale* scale, bool first_use,
              const Fp8Matrix& to, cudaStream_t stream);

}  // namespace ddptrain::cuda
