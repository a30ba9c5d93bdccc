#pragma once

#include <cuda_runtime.h>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"

/// Products with the GELU in their epilogue, by Hopper's warpgroup instructions. For the GPUs, tensors and `clusters`
/// that swiglu_product.h names; else both functions do nothing and return false.

namespace ddptrain::cuda {

/// pre [n, hidden] = x [n, in] weight [hidden, in]^T + bias; y [n, hidden] = gelu(pre), the bits of gelu() in
/// linear_kernels.h. Returns false for more than 8,192 columns, too.
bool try_linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre, const Tensor& y,
                     int clusters, cudaStream_t stream);

/// dpre [n, hidden] = the gradient of pre. The gradient of gelu(pre) is dy [n, out] weight [out, hidden], which is
/// rounded to bf16. dbias [hidden] (+)= the sums of dpre over the rows, from before it is rounded.
bool try_linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                              const Tensor& dbias, bool accumulate, int clusters, Scratch& scratch,
                              cudaStream_t stream);

}  // namespace ddptrain::cuda
