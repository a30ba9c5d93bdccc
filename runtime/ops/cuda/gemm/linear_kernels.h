#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"

/// What linear layers do besides matrix products. Tensors are f32 or bf16. Sums [columns] are of rows [rows, columns].

namespace ddptrain::cuda {

/// out [rows, columns] = `row` [columns] in every row.
void repeat_row(const void* row, std::int64_t rows, std::int64_t columns, DType dtype, void* out, cudaStream_t stream);
/// sums (+)= the sums of `matrix`.
void sum_columns(const Tensor& matrix, const Tensor& sums, bool accumulate, Scratch& scratch, cudaStream_t stream);
/// y = gelu(pre). The tanh of bf16 is the hardware's approximation.
void gelu(const Tensor& pre, const Tensor& y, cudaStream_t stream);
/// In place dpre *= gelu'(pre). sums (+)= the sums of dpre.
void gelu_backward(const Tensor& pre, const Tensor& dpre, const Tensor& sums, bool accumulate, Scratch& scratch,
                   cudaStream_t stream);

}  // namespace ddptrain::cuda
