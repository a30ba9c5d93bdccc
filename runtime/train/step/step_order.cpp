#include "runtime/train/step/step_order.h"

#include <algorithm>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// Puts an exchange between two passes of a stage if the stage has something to send or to receive.
class Stage {
 public:
  /// `next_ahead`: how many forward passes the next stage is ahead of its backward passes.
  Stage(std::int64_t stages, std::int64_t stage, std::int64_t next_ahead)
      : first_(stage == 0), last_(stage + 1 == stages), next_ahead_(next_ahead) {}

  void forward(std::int64_t pass) {
    if (!first_) next_.activations_in = pass;
    run(Action::Kind::forward, pass);
    if (!last_) next_.activations_out = pass;
  }
  void backward(std::int64_t pass) {
    // The next stage uses these activations before it computes the gradients.
    if (next_.activations_out && *next_.activations_out <= pass + next_ahead_) exchange();
    if (!last_) next_.gradients_in = pass;
    run(Action::Kind::backward, pass);
    if (!first_) next_.gradients_out = pass;
  }
  std::vector<Action> finish() {
    exchange();
    return std::move(actions_);
  }

 private:
  void run(Action::Kind kind, std::int64_t pass) {
    exchange();
    actions_.push_back({kind, pass});
  }
  void exchange() {
    if (next_ != Exchange{}) actions_.push_back({Action::Kind::exchange, 0, next_});
    next_ = {};
  }

  bool first_;
  bool last_;
  std::int64_t next_ahead_;
  Exchange next_;
  std::vector<Action> actions_;
};

}  // namespace

std::int64_t passes_in_flight(std::int64_t stages, std::int64_t stage, std::int64_t passes) {
  return std::min(stages - stage, passes);
}

std::vector<Pass> passes_of_step(std::int64_t virtual_ranks, std::int64_t grad_accum) {
  std::vector<Pass> passes;
  for (std::int64_t i = 0; i < virtual_ranks; ++i) {
    for (std::int64_t micro = 0; micro < grad_accum; ++micro) {
      const bool last = micro + 1 == grad_accum;
      const auto number = static_cast<std::int64_t>(passes.size());
      passes.push_back({number, i, micro, last, last && i + 1 == virtual_ranks});
    }
  }
  return passes;
}

std::vector<Action> pipeline_schedule(std::int64_t stages, std::int64_t stage, std::int64_t passes) {
  DDP_CHECK(stage >= 0 && stage < stages && passes > 0, "stage {} of {}, {} passes", stage, stages, passes);
  const std::int64_t ahead = passes_in_flight(stages, stage, passes) - 1;
  Stage plan(stages, stage, passes_in_flight(stages, stage + 1, passes) - 1);
  for (std::int64_t pass = 0; pass < ahead; ++pass) plan.forward(pass);
  for (std::int64_t pass = 0; pass < passes; ++pass) {
    if (pass + ahead < passes) plan.forward(pass + ahead);
    plan.backward(pass);
  }
  return plan.finish();
}

std::vector<UnitTurn> forward_turns(std::size_t units) {
  std::vector<UnitTurn> turns;
  for (std::size_t unit = 0; unit < units; ++unit) {
    UnitTurn& turn = turns.emplace_back(UnitTurn{unit});
    if (unit + 1 < units) turn.next = unit + 1;
  }
  return turns;
}

std::vector<UnitTurn> backward_turns(std::size_t units) {
  std::vector<UnitTurn> turns;
  for (std::size_t unit = units; unit-- > 0;) {
    UnitTurn& turn = turns.emplace_back(UnitTurn{unit});
    if (unit > 0) turn.next = unit - 1;
  }
  return turns;
}

const std::vector<UnitTurn>& StepOrder::turns_of(const Action& action) const {
  static const std::vector<UnitTurn> none;
  if (action.kind == Action::Kind::exchange) return none;
  return action.kind == Action::Kind::forward ? forward : backward;
}

StepOrder step_order(std::int64_t stages, std::int64_t stage, std::vector<Pass> passes, std::size_t units) {
  StepOrder order;
  order.actions = pipeline_schedule(stages, stage, std::ssize(passes));
  order.passes = std::move(passes);
  order.forward = forward_turns(units);
  order.backward = backward_turns(units);
  return order;
}

}  // namespace ddptrain
