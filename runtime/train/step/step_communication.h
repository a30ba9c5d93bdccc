#pragma once

#include <cstddef>
#include <memory>

#include "runtime/train/results/gradient_path.h"
#include "runtime/train/step/store/weight_store.h"
#include "runtime/train/step/sync/gradient_sync.h"
#include "runtime/train/step/sync/virtual_rank_sums.h"
#include "runtime/train/step/trainer_options.h"

namespace ddptrain {

/// The communication of a step, chosen once for a run.
struct StepCommunication {
  std::unique_ptr<VirtualRankSums> virtual_ranks;  ///< Null without virtual ranks.
  Buffer peer_memory;                              ///< For paths whose GPUs access each other's memory.
  std::unique_ptr<GradientSync> gradients;
  std::unique_ptr<WeightStore> weights;
  GradientPath path;

  std::size_t tree_bytes() const;  ///< Device memory of the tree of virtual ranks.
};

/// Chooses the path from the options, the arena and the abilities of all ranks. All ranks choose the same. Arena and
/// optimizer outlive the result. Collective.
StepCommunication make_step_communication(const TrainerOptions& options, const ParameterArena& arena,
                                          Optimizer& optimizer);

}  // namespace ddptrain
