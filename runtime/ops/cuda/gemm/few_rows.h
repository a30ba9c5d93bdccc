#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"
#include "runtime/ops/rms_norm.h"

/// Linear layers of a few rows, whose time is that of reading the weight. All tensors are bf16. They read weight, bias
/// and the norm's weight before earlier operations have ended: see LinearOps.

namespace ddptrain::cuda {

struct FewRowsLayer {
  Tensor x;                         ///< [rows, in]: the residual if there is a norm.
  Tensor weight;                    ///< [out, in]
  Tensor bias;                      ///< May have no data.
  Tensor product;                   ///< [rows, out] = x weight^T + bias
  Tensor swiglu = {};               ///< [rows, out / 2] = swiglu(product), if it has data.
  const AddedNorm* norm = nullptr;  ///< Null: there is none.
};

/// Whether linear_of_few_rows() takes x [rows, in] and weight [out, in].
bool has_few_rows(const Tensor& x, const Tensor& weight);
/// Whether it takes a norm and the weight: for one row.
bool has_few_rows(const AddedNorm& norm, const Tensor& weight);
void linear_of_few_rows(const FewRowsLayer& layer, int multiprocessors, cudaStream_t stream);

}  // namespace ddptrain::cuda
