#include "runtime/train/replica/updates.h"

namespace ddptrain {

Updates::Updates(const TrainerOptions& options, Replica& replica)
    : optimizer(options.optimizer, options.clip_norm, replica.arena(), &replica.state().step()->nonfinite,
                options.on_nonfinite, &replica.pipeline()),
      communication(make_step_communication(options, replica.arena(), optimizer)) {}

}  // namespace ddptrain
