#pragma once

#include <memory>

#include "runtime/train/replica/trainer.h"
#include "runtime/train/step/gradient_reducer.h"
#include "runtime/train/step/step_graph.h"
#include "runtime/train/step/store/weight_store.h"
#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {

/// Steps of a trainer, whole and in part, for measurements. They change parameters, so training cannot go on
/// afterwards.
class MeasuredSteps {
 public:
  explicit MeasuredSteps(Trainer& trainer);  ///< The trainer outlives the object.
  MeasuredSteps(const MeasuredSteps&) = delete;
  MeasuredSteps& operator=(const MeasuredSteps&) = delete;

  // Each queues one step. This object outlives them.
  StepGraph::Step step();  ///< As in training.
  /// Compute and updates without communication. It may run on some ranks only.
  StepGraph::Step step_without_communication();
  /// Communication without compute. If the update itself sends weights, it includes the update.
  StepGraph::Step communication();

  /// Steps that use graphs if training does. None of them is eager then.
  StepGraph graph_of(StepGraph::Step step) const;

 private:
  void communicate(const Pass& pass, GradientReducer& reducer, WeightStore& weights) const;

  Trainer& trainer_;
  std::unique_ptr<GradientSync> no_sync_;
  std::unique_ptr<WeightStore> own_weights_;
  GradientReducer no_communication_;
};

}  // namespace ddptrain
