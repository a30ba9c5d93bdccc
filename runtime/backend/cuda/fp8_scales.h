#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "runtime/backend/cuda/cuda_utils.h"
#include "runtime/backend/cuda/fp8.h"

namespace ddptrain::cuda {

/// Which of a linear layer's operands.
enum class Fp8Role : std::uint8_t { input, weight, output_gradient };

/// The scales of the linear layers that compute in FP8; a layer is known by where its weight lies.
class Fp8Scales {
 public:
  struct Found {
    Fp8Scale* scale;
    bool first_use;
  };

  /// Whether the layer's input has been scaled before.
  bool knows(const void* weight) const { return places_.contains({weight, Fp8Role::input}); }
  /// Throws Error where memory is needed while `stream` is being captured.
  Found find(const void* weight, Fp8Role role, cudaStream_t stream);

 private:
  static constexpr std::size_t kPerBlock = 1024;

  std::vector<DeviceMemory> blocks_;
  std::map<std::pair<const void*, Fp8Role>, std::size_t> places_;
};

}  // namespace ddptrain::cuda
