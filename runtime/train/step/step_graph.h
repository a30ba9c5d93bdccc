#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "runtime/device/device.h"
#include "runtime/ops/optimizer.h"

namespace ddptrain {

struct StepGraphOptions {
  bool enabled = true;
  std::uint32_t eager_steps = 3;  ///< Before the capture, so that libraries have set themselves up.
  std::uint32_t unroll = 8;       ///< Steps of the larger graph.
};

/// Queues steps: the first ones eagerly, then by replaying two captured graphs, of one step and of `unroll` steps.
/// Eager throughout where it is not enabled or the device has no graphs. The numbers are bitwise the same.
class StepGraph {
 public:
  /// Queues step number `state->step + offset` on the device's streams, joined to the compute stream at the end.
  using Step = std::function<void(std::uint32_t offset)>;

  /// `state` lies where the device computes. Device and what `step` refers to outlive this.
  StepGraph(Device& device, StepState* state, Step step, const StepGraphOptions& options);

  /// Queues the next `count` steps; returns without waiting. Where steps communicate: on every rank with the same
  /// counts.
  void run(std::uint64_t count);
  /// Captures now if enough eager steps have been run, else does nothing. run() does so by itself.
  void prepare();

 private:
  void queue(std::uint32_t steps);
  void launch(Graph& graph, std::uint32_t steps);

  Device& device_;
  OptimizerOps& optimizer_;
  StepState* state_;
  Step step_;
  bool enabled_;
  std::uint32_t eager_left_;
  std::uint32_t unroll_;
  std::unique_ptr<Graph> one_;
  std::unique_ptr<Graph> many_;
};

}  // namespace ddptrain
