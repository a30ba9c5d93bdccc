#pragma once

#define CUDNN_FRONTEND_SKIP_JSON_LIB  // its serialization takes a third of the time to compile
#include <cudnn_frontend.h>

#include <memory>

#include "runtime/device/cuda/cuda_utils.h"

/// Helpers of the files that use cuDNN's graphs. Include it in .cpp files only: cudnn_frontend.h compiles for half a
/// minute.

namespace ddptrain::cuda {

namespace fe = cudnn_frontend;
using TensorRef = std::shared_ptr<fe::graph::Tensor_attributes>;
using CudnnHandle = Handle<cudnnHandle_t, cudnnDestroy>;

inline void check(cudnnStatus_t status, const char* call, const char* file, int line) {
  if (status != CUDNN_STATUS_SUCCESS) fail_call(call, file, line, cudnnGetErrorString(status));
}
inline void check(fe::error_t status, const char* call, const char* file, int line) {
  if (status.is_bad()) fail_call(call, file, line, status.get_message().c_str());
}

}  // namespace ddptrain::cuda

/// Throws Error unless the call of cuDNN succeeds.
#define DDP_CUDNN(call) ::ddptrain::cuda::check((call), #call, __FILE__, __LINE__)
