#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain::cuda {

/// out [rows, columns] = `row` [columns] in every row; f32 or bf16.
void repeat_row(const void* row, std::int64_t rows, std::int64_t columns, DType dtype, void* out, cudaStream_t stream);

}  // namespace ddptrain::cuda
