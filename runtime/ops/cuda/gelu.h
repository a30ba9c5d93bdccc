#pragma once

#include <cuda_runtime_api.h>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::cuda {

/// y = gelu(pre), of f32 or bf16; the tanh of bf16 is the hardware's approximation.
void gelu(const Tensor& pre, const Tensor& y, cudaStream_t stream);
/// In place dpre [rows, columns] *= gelu'(pre). If `sums` [columns] (f32 or bf16) has data, it (+)= the sums of dpre
/// over the rows.
void gelu_backward(const Tensor& pre, const Tensor& dpre, const Tensor& sums, bool accumulate, Scratch& scratch,
                   cudaStream_t stream);

}  // namespace ddptrain::cuda
