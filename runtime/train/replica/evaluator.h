#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/train/replica/replica.h"
#include "runtime/train/step/distributed_sampler.h"
#include "runtime/train/step/metric_buffers.h"
#include "runtime/train/step/step_order.h"
#include "runtime/train/step/store/weight_store.h"

namespace ddptrain {

/// Evaluates the weights of a replica on the test samples.
class Evaluator {
 public:
  /// `batch`: samples at a time. `weights` gives the weights of the units, and `metrics` has the sums. All outlive the
  /// evaluator.
  Evaluator(Replica& replica, std::int64_t test_count, std::int64_t batch, WeightStore& weights,
            MetricBuffers& metrics);

  /// Evaluates each test sample once; all ranks share the work. `most`: only the first samples; 0: all. Collective;
  /// waits.
  MetricSums evaluate(std::int64_t most = 0);

 private:
  void evaluate(const EvaluationShard& shard, std::size_t batches, MetricSums* sums);
  void forward(const MicroBatch& batch, std::int64_t number);

  Replica& replica_;
  Device& device_;
  std::int64_t test_count_;
  std::int64_t batch_;
  WeightStore& weights_;
  MetricBuffers& metrics_;
  std::vector<UnitTurn> turns_;  ///< Of a forward pass.
};

}  // namespace ddptrain
