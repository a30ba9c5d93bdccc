#include "runtime/train/replica/updates.h"

namespace ddptrain {
namespace {

/// The other ranks of the replica, for the norm of its whole gradient. A stage that is only described has none.
Pipeline* other_ranks(Replica& replica) {
  const Stages& stages = replica.stages();
  return stages.ranks != nullptr || stages.tensor != nullptr ? &replica.pipeline() : nullptr;
}

OptimizerSettings settings_of(const TrainerOptions& options) {
  OptimizerSettings settings = options.optimizer;
  settings.rounding_seed = options.seed;
  return settings;
}

}  // namespace

Updates::Updates(const TrainerOptions& options, Replica& replica)
    : optimizer(settings_of(options), options.clip_norm, replica.arena(), &replica.state().step()->nonfinite,
                options.on_nonfinite, other_ranks(replica)),
      communication(make_step_communication(options, replica.arena(), optimizer)) {}

}  // namespace ddptrain
