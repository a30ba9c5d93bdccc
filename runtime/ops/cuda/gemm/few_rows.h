#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"

/// Linear layers of a few rows, whose time is that of reading the weight. All tensors are bf16.

namespace ddptrain::cuda {

/// Whether the functions below take x [rows, in] and weight [out, in].
bool has_few_rows(const Tensor& x, const Tensor& weight);
/// y [rows, out] = x weight^T + bias (if it has data).
void linear_of_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y,
                        cudaStream_t stream);
/// pre [rows, out] = the same, and y [rows, out / 2] = swiglu(pre).
void linear_swiglu_of_few_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                               const Tensor& y, cudaStream_t stream);

}  // namespace ddptrain::cuda
