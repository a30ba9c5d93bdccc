#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/outer/codec.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/groups/outer_options.h"
#include "runtime/train/groups/run_settings.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/replica/whole_weights.h"
#include "runtime/train/results/outer.h"

namespace ddptrain {

class OuterState;
struct OuterPart;

/// The names of the arrays of a checkpoint that have the outer state begin so.
inline constexpr const char* kOuterArrays = "outer/";

/// A group's part of it, on every rank of the group: sends what the group has learned to the log every `steps` steps,
/// and replaces its weights by the outer weights. Rank 0 has the outer state in host memory, and folds the log. Steps
/// between due() ones have no part in it.
class OuterLoop {
 public:
  /// `settings`: names and values that all groups of a run must share, besides those in the options. `steps`: of the
  /// whole run. `resumed`: the checkpoint that has been restored; null: none. Without rounds, the weights become the
  /// newest outer weights of the log. UsageError if the log is out of reach or of a run with other settings, if the
  /// run has its groups already, if a job trains under the name of the group, if the checkpoint has no outer state or
  /// is of another run, or if the rounds of the run are finished and `resumed` is null. If a signal asks for the end
  /// meanwhile (agreed_end_signal()), the object must not be used. Collective.
  OuterLoop(const OuterOptions& options, const GroupSettings& settings, std::int64_t steps, const Trainer& trainer,
            const World& world, const Checkpoint* resumed);
  ~OuterLoop();
  OuterLoop(const OuterLoop&) = delete;
  OuterLoop& operator=(const OuterLoop&) = delete;

  /// The next step after `step` at which exchange() is due. The last step is one.
  std::int64_t next_stop(std::int64_t step) const;
  bool is_due(std::int64_t step) const { return next_stop(step - 1) == step; }

  /// Sends and takes what is due after `step` steps. In rounds, and after the last step, it waits for other groups or
  /// the log. Returns the signal that ended a wait, if one has. Then it must be called again for the same step, also
  /// after a resume. Without rounds, the wait after the last step ends without the log if a signal asks for the end, or
  /// if the log fails for two minutes: the group keeps its own weights. `kept`: step of a complete checkpoint of this
  /// run from which it may have to be repeated; empty: there is none. UsageError if the group has lost its place in the
  /// run: see OuterState::require_place(). Collective.
  std::optional<int> exchange(std::int64_t step, std::optional<std::int64_t> kept = std::nullopt);
  /// What exchange() has done since the last call. Empty except on rank 0.
  std::vector<OuterExchange> take_exchanges() { return std::exchange(exchanges_, {}); }
  OuterTotals totals() const;  ///< For rank 0. After the last step.

  /// The outer state as of the last exchange(), in host memory, for checkpoints. Empty except on rank 0.
  std::vector<StateArray> arrays() const;

 private:
  void restore(const Checkpoint& checkpoint);
  void share_parts();
  std::int64_t first_send(std::int64_t fragment) const;  ///< The step of the first difference.
  bool sends_at(std::int64_t fragment, std::int64_t step) const;
  std::optional<int> exchange_fragment(std::int64_t fragment, std::int64_t step);
  void send(std::int64_t fragment, std::int64_t step);
  std::optional<int> merge(std::int64_t fragment, std::int64_t step);
  void require_place();
  void take_outer_weights(std::int64_t fragment, bool keep_since_sent);
  void catch_up();

  using Clock = std::chrono::steady_clock;

  OuterOptions options_;
  std::int64_t steps_;
  const World& world_;
  Device& device_;
  WholeWeights weights_;
  OuterLayout layout_;
  std::vector<OuterPart> parts_;
  std::unique_ptr<OuterState> state_;  ///< Null except on rank 0.
  std::vector<OuterExchange> exchanges_;
  double seconds_ = 0.0;  ///< In exchange().
  Clock::time_point exchange_began_;
};

}  // namespace ddptrain
