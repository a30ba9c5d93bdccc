#pragma once

#include <cuda_runtime_api.h>
#include "runtime/ops/optimizer.h"

namespace ddptrain {

namespace cuda::optimizer {

/// A rule as the family calls it; the file of its name in optimizers/ instantiates it.
template <OptimizerKind kKind>
struct Rule {
  static void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, cudaStream_t stream);
  /// Not for rules of whole parameters. `most_blocks`: see most_waiting_blocks().
  static void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                             StepRef step, int most_blocks, cudaStream_t stream);
  /// How many blocks of sum_and_update()'s kernel a multiprocessor holds at once; 0 where there is none.
  static int blocks_per_multiprocessor(const UpdateSlice& slice);
};

}  // namespace cuda::optimizer

}  // namespace ddptrain
