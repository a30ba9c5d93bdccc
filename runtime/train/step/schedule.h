#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace ddptrain {

/// What a stage of a pipeline sends to its neighbours and receives from them at one time; each is of a pass.
struct Exchange {
  std::optional<std::int64_t> activations_in = {}, activations_out = {};  ///< From the stage before; to the one behind.
  std::optional<std::int64_t> gradients_in = {}, gradients_out = {};      ///< From the stage behind; to the one before.

  bool operator==(const Exchange&) const = default;
};

/// A part of a step.
struct Action {
  enum class Kind : std::uint8_t { exchange, forward, backward };
  Kind kind;
  std::int64_t pass = 0;   ///< Of forward and backward.
  Exchange messages = {};  ///< Of exchange.

  bool operator==(const Action&) const = default;
};

/// The actions of stage `stage` of `stages` in a step of `passes` passes: one forward, one backward (1F1B: Narayanan et
/// al. 2019, "PipeDream"; flushed after each step). A stage is ahead of the last one by as many passes as there are
/// stages behind it. What a stage has to send goes with what it is to receive next, so that no two stages wait for each
/// other's receipt. One stage has F0 B0 F1 B1 and so on.
std::vector<Action> schedule(std::int64_t stages, std::int64_t stage, std::int64_t passes);

/// Passes between whose forward and backward passes a stage is at a time, at most: activations that it keeps.
std::int64_t passes_in_flight(std::int64_t stages, std::int64_t stage, std::int64_t passes);

}  // namespace ddptrain
