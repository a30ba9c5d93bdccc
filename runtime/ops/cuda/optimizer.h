#pragma once

#include <cuda_runtime_api.h>
#include "runtime/ops/optimizer.h"

namespace ddptrain {

namespace cuda::optimizer {

/// A rule as the family calls it; the file of its name in optimizers/ instantiates it.
template <OptimizerKind kKind>
struct Rule {
  static void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, cudaStream_t stream);
  /// Not for rules of whole parameters.
  static void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                             StepRef step, cudaStream_t stream);
};

}  // namespace cuda::optimizer

}  // namespace ddptrain
