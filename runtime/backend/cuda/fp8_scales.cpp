#include "runtime/backend/cuda/fp8_scales.h"

#include "runtime/core/error.h"

namespace ddptrain::cuda {

Fp8Scales::Found Fp8Scales::find(const void* weight, Fp8Role role, cudaStream_t stream) {
  const auto [place, is_new] = places_.try_emplace({weight, role}, places_.size());
  if (is_new && place->second / kPerBlock == blocks_.size()) {
    DDP_CHECK(!is_capturing(stream), "a layer in FP8 must run once before it is captured in a graph");
    DeviceMemory memory;
    DDP_CUDA(cudaMalloc(memory.out(), kPerBlock * sizeof(Fp8Scale)));
    DDP_CUDA(cudaMemsetAsync(memory.get(), 0, kPerBlock * sizeof(Fp8Scale), stream));
    blocks_.push_back(std::move(memory));
  }
  auto* block = static_cast<Fp8Scale*>(blocks_[place->second / kPerBlock].get());
  return {block + place->second % kPerBlock, is_new};
}

}  // namespace ddptrain::cuda
