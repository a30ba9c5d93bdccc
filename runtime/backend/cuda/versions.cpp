#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "runtime/backend/backend.h"
#include "runtime/core/error.h"

namespace ddptrain {

std::string cuda_version() {
  int version = 0;
  if (cudaRuntimeGetVersion(&version) != cudaSuccess) version = CUDART_VERSION;
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace ddptrain
