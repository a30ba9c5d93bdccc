#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"

/// Operations of linear layers on biases, outside of the matrix multiplication.

namespace ddptrain::cuda {

/// out [rows, columns] = `row` [columns] in every row; f32 or bf16.
void repeat_row(const void* row, std::int64_t rows, std::int64_t columns, DType dtype, void* out, cudaStream_t stream);
/// sums [columns] (+)= the sums over the rows of `matrix` [rows, columns]; f32 or bf16 each.
void sum_columns(const Tensor& matrix, const Tensor& sums, bool accumulate, Scratch& scratch, cudaStream_t stream);

}  // namespace ddptrain::cuda
