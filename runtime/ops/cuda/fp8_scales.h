#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/ops/cuda/fp8.h"

namespace ddptrain::cuda {

/// All scales of a device.
class Fp8Scales {
 public:
  /// Not while `stream` is being captured.
  Fp8Scale* make(DType format, cudaStream_t stream);
  void renew(cudaStream_t stream) const;
  void forget(cudaStream_t stream) const;

 private:
  using Pass = void (*)(Fp8State* states, std::size_t count, cudaStream_t stream);
  void for_all(Pass pass, cudaStream_t stream) const;

  static constexpr std::size_t kPerBlock = 1024;

  std::vector<DeviceMemory> blocks_;
  std::deque<Fp8Scale> scales_;
};

}  // namespace ddptrain::cuda
