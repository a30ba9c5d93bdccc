#pragma once

#include <cuda_runtime_api.h>

#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::cuda {

/// A function of the CUDA driver, which programs are not linked with, as CUDA 12 declares it. Null if the driver has no
/// such function.
template <class Function>
Function* driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  DDP_CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found));
#else
  DDP_CUDA(cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found));
#endif
  return found == cudaDriverEntryPointSuccess ? reinterpret_cast<Function*>(function) : nullptr;
}

}  // namespace ddptrain::cuda
