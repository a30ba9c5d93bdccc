#pragma once

#include <cstdint>

#include "runtime/core/step.h"

namespace ddptrain::cuda {

/// Whether a step is logged (StepLog). The constructor starts to read what decides it, so that a kernel does not wait
/// for it at its end.
class LoggedStep {
 public:
  __device__ __forceinline__ explicit LoggedStep(const StepRef& step) : step_(step) {
    if (step.state == nullptr) return;             // a batch that is not trained on
    const volatile StepState* state = step.state;  // volatile: the reads stay here
    done_ = state->step + step.offset + 1;
    every_ = state->log.every;
  }

  /// Call it when *changed has its last value.
  __device__ __forceinline__ void note_sums(const MetricSums* changed) const {
    if (every_ == 0 || !divides()) return;
    step_.note_sums(changed);
  }

 private:
  /// Divisions of 32 bits take a third of the time.
  __device__ __forceinline__ bool divides() const {
    return done_ >> 32 == 0 ? static_cast<std::uint32_t>(done_) % every_ == 0 : done_ % every_ == 0;
  }

  StepRef step_;
  std::uint64_t done_ = 0;
  std::uint32_t every_ = 0;
};

}  // namespace ddptrain::cuda
