#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/core/tensor.h"

/// Products with SwiGLU in their epilogue, by Hopper's warpgroup instructions. All tensors are bf16. Both functions do
/// nothing and return false if the GPU or the tensors do not suit: `hidden` and the terms of a sum must be multiples of
/// 64, and data must be aligned to 16 bytes. The product is rounded to bf16 first, and SwiGLU of it has the bits that
/// the kernels of GatedOps give. `clusters`: the largest number of clusters, of two thread
/// blocks each, to launch; the bits do not depend on it. If it is not positive, the functions return false.

namespace ddptrain::cuda {

/// pre [n, 2 hidden] = x [n, in] weight [2 hidden, in]^T; y [n, hidden] = swiglu(pre).
bool try_linear_swiglu(const Tensor& x, const Tensor& weight, const Tensor& pre, const Tensor& y, int clusters,
                       cudaStream_t stream);

/// Warps that compute gradients of a tile while the next one is multiplied. Three leave the others registers for larger
/// products in an instruction. Seven are faster where sums have few terms.
enum class FinishingWarps : std::uint8_t { three = 3, seven = 7 };

/// dpre [n, 2 hidden] = the gradient of pre. The gradient of swiglu(pre) is dy [n, out] weight [out, hidden]. If y
/// [n, hidden] has data, it gets swiglu(pre). The bits do not depend on `warps`.
bool try_linear_swiglu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                const Tensor& y, FinishingWarps warps, int clusters, cudaStream_t stream);

}  // namespace ddptrain::cuda
