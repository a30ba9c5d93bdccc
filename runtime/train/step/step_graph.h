#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/device/device.h"
#include "runtime/ops/optimizers/optimizer.h"

namespace ddptrain {

struct StepGraphOptions {
  bool enabled = true;
  std::uint32_t eager_steps = 3;  ///< Steps before the capture, in which libraries initialize themselves.
  std::uint32_t unroll = 8;       ///< Number of steps in the larger graph.
};

/// For steps of at least this time, callers ask for no graph of several steps. Such a graph takes device memory for
/// each of its steps, and saves time only between short steps.
inline constexpr double kLongStepSeconds = 0.04;

/// Queues steps. The first steps run eagerly. Then two captured graphs are replayed: one with one step and one with
/// `unroll` steps; only the first if the caller of prepare() asked for no more. All steps are eager if graphs are not
/// enabled or the device has none. Results have the same bits.
class StepGraph {
 public:
  /// Queues step number `state->step + offset` on the device's streams. At the end the compute stream waits for the
  /// others.
  using Step = std::function<void(std::uint32_t offset)>;

  /// `state` is in device memory. Device and the references in `step` outlive the object.
  StepGraph(Device& device, StepState* state, Step step, const StepGraphOptions& options);

  /// Queues the next `count` steps. Does not wait. If steps communicate, every rank calls it with the same counts.
  void run(std::uint64_t count);
  /// Captures the graphs now if enough eager steps have run; only the first one unless `several` is set. All ranks pass
  /// the same value. run() captures both graphs by itself.
  void prepare(bool several = true);
  std::uint32_t eager_left() const { return eager_left_; }  ///< Number of eager steps that are still to run.
  bool has_graph_of_several() const { return many_ != nullptr; }

 private:
  void queue(std::uint32_t steps);
  void queue_eagerly();
  void launch(Graph& graph, std::uint32_t steps);

  Device& device_;
  OptimizerOps& optimizer_;
  StepState* state_;
  Step step_;
  bool enabled_;
  std::uint32_t eager_left_;
  std::uint32_t unroll_;
  std::unique_ptr<Graph> one_;
  std::unique_ptr<Graph> many_;  ///< Null for long steps.
};

}  // namespace ddptrain
