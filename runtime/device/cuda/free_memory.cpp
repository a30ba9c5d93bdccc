#include "runtime/device/free_memory.h"

#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain {

std::size_t free_gpu_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  DDP_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

}  // namespace ddptrain
