#include "runtime/ops/cuda/fp8_scales.h"

#include <algorithm>

#include "runtime/core/error.h"

namespace ddptrain::cuda {

Fp8Scale* Fp8Scales::make(DType format, cudaStream_t stream) {
  DDP_CHECK(is_fp8(format), "{} is not FP8", name_of(format));
  DDP_CHECK(!is_capturing(stream), "a scale cannot be made while a graph is captured");
  const std::size_t place = scales_.size() % kPerBlock;
  if (place == 0) {
    DeviceMemory memory;
    DDP_CUDA(cudaMalloc(memory.out(), kPerBlock * sizeof(Fp8State)));
    blocks_.push_back(std::move(memory));
  }
  const Fp8State state{.limit = largest_of(format)};
  Fp8State* to = static_cast<Fp8State*>(blocks_.back().get()) + place;
  DDP_CUDA(cudaMemcpyAsync(to, &state, sizeof(state), cudaMemcpyHostToDevice, stream));
  return &scales_.emplace_back(Fp8Scale{to, format});
}

void Fp8Scales::renew(cudaStream_t stream) const { for_all(&cuda::renew, stream); }

void Fp8Scales::forget(cudaStream_t stream) const { for_all(&forget_largest, stream); }

void Fp8Scales::for_all(Pass pass, cudaStream_t stream) const {
  for (std::size_t first = 0; first < scales_.size(); first += kPerBlock) {
    auto* states = static_cast<Fp8State*>(blocks_[first / kPerBlock].get());
    pass(states, std::min(kPerBlock, scales_.size() - first), stream);
  }
}

}  // namespace ddptrain::cuda
