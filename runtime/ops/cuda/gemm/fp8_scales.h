#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "runtime/ops/cuda/gemm/fp8.h"
#include "runtime/ops/quantisation.h"

namespace ddptrain::cuda {

std::unique_ptr<Fp8Scales> make_fp8_scales(Device& device, const std::vector<DType>& formats, const Tensor& states);

/// Something is about to be written with `scale`.
void note_use(Fp8Scale& scale, cudaStream_t stream);

}  // namespace ddptrain::cuda
