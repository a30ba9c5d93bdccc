#include "runtime/train/replica/updates.h"

namespace ddptrain {
namespace {

/// The other ranks of the replica, for the norm of its whole gradient. A stage that is only described has none.
Pipeline* other_ranks(Replica& replica) {
  const Stages& stages = replica.stages();
  return stages.world != nullptr || stages.group != nullptr ? &replica.pipeline() : nullptr;
}

}  // namespace

Updates::Updates(const TrainerOptions& options, Replica& replica)
    : optimizer(options.optimizer, options.clip_norm, replica.arena(), &replica.state().step()->nonfinite,
                options.on_nonfinite, other_ranks(replica)),
      communication(make_step_communication(options, replica.arena(), optimizer)) {}

}  // namespace ddptrain
