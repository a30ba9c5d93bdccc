#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

/// The order of a training step on one rank. Trainer runs it, and sends_of() counts the messages of it.

namespace ddptrain {

/// One forward and backward pass: micro-step `micro` of this rank's virtual rank `virtual_rank`.
struct Pass {
  std::int64_t number = 0;
  std::int64_t virtual_rank = 0;
  std::int64_t micro = 0;
  bool ends_virtual_rank = false;
  bool ends_step = false;
};

/// The passes of a step on a rank: `grad_accum` for each of its virtual ranks.
std::vector<Pass> passes_of_step(std::int64_t virtual_ranks, std::int64_t grad_accum);

/// Messages that a stage exchanges with its neighbours at the same time. Each member is the number of a pass.
struct Exchange {
  std::optional<std::int64_t> activations_in = {};   ///< From the previous stage.
  std::optional<std::int64_t> activations_out = {};  ///< To the next stage.
  std::optional<std::int64_t> gradients_in = {};     ///< From the next stage.
  std::optional<std::int64_t> gradients_out = {};    ///< To the previous stage.

  bool operator==(const Exchange&) const = default;
};

/// A part of a step.
struct Action {
  enum class Kind : std::uint8_t { exchange, forward, backward };
  Kind kind;
  std::int64_t pass = 0;   ///< Used by forward and backward.
  Exchange messages = {};  ///< Used by exchange.

  bool operator==(const Action&) const = default;
};

/// The actions of stage `stage` of `stages` in a step of `passes` passes, by the schedule "one forward, one backward"
/// with a flush after each step (PipeDream-Flush: Narayanan et al. 2021, arXiv:2006.09503). A stage followed by n
/// stages begins with n extra forward passes. A stage sends and receives in one exchange, so that no two stages wait
/// for each other to receive. With one stage the actions are F0 B0 F1 B1 and so on.
std::vector<Action> pipeline_schedule(std::int64_t stages, std::int64_t stage, std::int64_t passes);

/// The maximum number of passes in flight: passes whose forward is done and whose backward is not. The stage keeps
/// their activations.
std::int64_t passes_in_flight(std::int64_t stages, std::int64_t stage, std::int64_t passes);

/// A unit of the model whose turn it is in a pass, and the unit that follows it in the same pass, whose weights may be
/// gathered ahead.
struct UnitTurn {
  std::size_t unit = 0;
  std::optional<std::size_t> next = {};

  bool operator==(const UnitTurn&) const = default;
};

/// The turns of `units` units in a forward pass, and in a backward pass.
std::vector<UnitTurn> forward_turns(std::size_t units);
std::vector<UnitTurn> backward_turns(std::size_t units);

/// All of a step: its passes, the actions in their order, and the turns of the units within each pass.
struct StepOrder {
  std::vector<Pass> passes;
  std::vector<Action> actions;
  std::vector<UnitTurn> forward;
  std::vector<UnitTurn> backward;

  const Pass& pass_of(const Action& action) const { return passes[static_cast<std::size_t>(action.pass)]; }
  /// The turns of the units in this action. None in an exchange.
  const std::vector<UnitTurn>& turns_of(const Action& action) const;
};

/// The order on a rank of stage `stage` of `stages`, which has these passes, and a model of `units` units.
StepOrder step_order(std::int64_t stages, std::int64_t stage, std::vector<Pass> passes, std::size_t units);

/// Whether the gradients of a pass are reduced over the replicas. `sums_every_pass`: see GradientSync.
inline bool is_reduced(bool ends_step, bool sums_every_pass) { return ends_step || sums_every_pass; }

}  // namespace ddptrain
