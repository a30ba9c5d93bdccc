#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "runtime/core/tensor.h"

/// ReductionOps::add_nodes() and add_tree(), of f32 or bf16.

namespace ddptrain::cuda {

void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, cudaStream_t stream);
void add_tree(const Tensor& leaves, const Tensor& sum, cudaStream_t stream);

}  // namespace ddptrain::cuda
