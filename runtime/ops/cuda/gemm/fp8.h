#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain {

namespace cuda {

/// How the elements of a tensor become FP8, value * scale, and come back. Device memory.
struct alignas(32) Fp8State {
  float inverse_scale = 1.0f;
  float scale = 1.0f;
  float limit = 0.0f;         ///< Largest magnitude of the format.
  std::uint32_t largest = 0;  ///< Since the last renewal; magnitudes as the bits of an f32, which grow with it.
  std::uint32_t used = 0;     ///< Not 0 where anything was written with it, as Fp8Scale::used.
};

}  // namespace cuda

struct Fp8Scale {
  cuda::Fp8State* state = nullptr;
  DType format = DType::e4m3;
  bool used = false;
};

namespace cuda {

/// A tensor in FP8, to be written. `first_use`: nothing has been written with its state yet.
struct Fp8Matrix {
  DType format = DType::e4m3;
  std::uint32_t rows = 0;              ///< A multiple of 16.
  std::uint32_t columns = 0;           ///< A multiple of 16.
  std::uint8_t* values = nullptr;      ///< [rows, columns]
  std::uint8_t* transposed = nullptr;  ///< [columns, rows]
  Fp8State* state = nullptr;
  bool first_use = false;
};

/// A tensor in FP8 to be read, and one that is about to be written on `stream`. Error unless it has a scale.
Fp8Matrix fp8_matrix(const Tensor& tensor);
Fp8Matrix fp8_output(const Tensor& y, cudaStream_t stream);

/// The largest magnitude that a format holds.
float largest_of(DType format);
/// state[i].scale and inverse_scale follow from what state[i].largest says, if it is neither 0 nor infinite, and
/// that starts anew.
void renew(Fp8State* states, std::size_t count, cudaStream_t stream);
/// state[i].largest starts anew.
void forget_largest(Fp8State* states, std::size_t count, cudaStream_t stream);

/// Sums over the rows of what becomes FP8, f32 or bf16 [columns]; none where `to` has no data.
struct Fp8Sums {
  Tensor to;
  bool accumulate = false;
  float* partials = nullptr;  ///< fp8_partials() floats.
};
std::size_t fp8_partials(std::int64_t rows, std::int64_t columns);

/// Operands are bf16 [to.rows, to.columns], at addresses that are multiples of 16, and not the memory of `to`.
/// to = x
void quantize(const void* x, const Fp8Matrix& to, const Fp8Sums& sums, cudaStream_t stream);
/// to (e4m3) = gelu(pre)
void quantize_gelu(const void* pre, const Fp8Matrix& to, cudaStream_t stream);
/// to (e5m2) = dy * gelu'(pre)
void quantize_gelu_gradient(const void* pre, const void* dy, const Fp8Matrix& to, const Fp8Sums& sums,
                            cudaStream_t stream);
/// to (e4m3) = swiglu(pre): see GatedOps. pre [to.rows, 2 to.columns].
void quantize_swiglu(const void* pre, const Fp8Matrix& to, cudaStream_t stream);
/// to (e5m2) = the gradient of pre [to.rows, to.columns]. dy [to.rows, to.columns / 2], whose columns are a multiple of
/// 8.
void quantize_swiglu_gradient(const void* pre, const void* dy, const Fp8Matrix& to, cudaStream_t stream);
/// to.transposed from to.values.
void transpose(const Fp8Matrix& to, cudaStream_t stream);

}  // namespace cuda
}  // namespace ddptrain
