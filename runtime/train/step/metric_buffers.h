#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/train/step/store/virtual_ranks.h"

namespace ddptrain {

/// Sums of loss, correct predictions and samples on the device. The passes of each virtual rank of this rank add to
/// sums of their own (one set without virtual ranks). Totals are added in the order of virtual ranks.
class MetricBuffers {
 public:
  /// `may_skip`: skipped steps do not count. World and device outlive the buffers.
  MetricBuffers(const VirtualRanks& ranks, bool may_skip, const World& replicas, Device& device);

  /// The sums to which a training step of virtual rank `i` adds.
  MetricSums* step(std::int64_t i) const { return at(may_skip_ ? Kind::step : Kind::training, i); }
  MetricSums* evaluation(std::int64_t i) const { return at(Kind::evaluation, i); }
  /// Call it at the end of a step: adds the step's sums to the training sums unless the step is skipped. In the order
  /// of the compute stream.
  void finish_step(StepRef step);

  std::size_t count() const { return static_cast<std::size_t>(count_); }
  /// The training sums of each virtual rank since take_training(). Waits.
  std::vector<MetricSums> training() const { return read(Kind::training); }
  void set_training(std::vector<MetricSums> sums);                    ///< Missing sums become zero.
  const MetricSums* logged() const { return at(Kind::training, 0); }  ///< See StepLog::training.

  /// Return the totals over all ranks, and set the sums to zero. Collective; wait.
  MetricSums take_training() { return take(Kind::training); }
  MetricSums take_evaluation() { return take(Kind::evaluation); }
  /// Remembers the training sums, in the order of the steps; does not wait.
  void mark_training();
  /// The total over all ranks since mark_training(). take_training() must not be called in between. Collective; waits.
  MetricSums since_mark() const;
  /// The totals over all ranks of several states of the training sums, each count() sums of this rank. Collective.
  std::vector<MetricSums> totals(const std::vector<MetricSums>& mine) const;

 private:
  enum class Kind : std::uint8_t { training, evaluation, step, marked };

  MetricSums* at(Kind kind, std::int64_t i) const;
  std::size_t bytes() const { return count() * sizeof(MetricSums); }
  std::vector<MetricSums> read(Kind kind) const;
  MetricSums take(Kind kind);

  VirtualRanks ranks_;
  std::int64_t count_;
  bool may_skip_;
  const World& replicas_;
  Device& device_;
  Buffer sums_;  ///< Kind by kind.
};

}  // namespace ddptrain
