#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::cuda {

/// y = gelu(pre), `count` elements of f32 or bf16; the tanh of bf16 is the hardware's approximation.
void gelu(const void* pre, std::int64_t count, DType dtype, void* y, cudaStream_t stream);
/// dpre = dy * gelu'(pre); dpre may be dy or pre.
void gelu_backward(const void* pre, const void* dy, std::int64_t count, DType dtype, void* dpre, cudaStream_t stream);
/// In place dpre [rows, columns] *= gelu'(pre); sums [columns] (f32 or bf16) (+)= its sums over the rows.
void gelu_backward(const void* pre, const Tensor& dpre, Scratch& scratch, const Tensor& sums, bool accumulate,
                   cudaStream_t stream);

}  // namespace ddptrain::cuda
