#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/train/step/virtual_ranks.h"

namespace ddptrain {

/// The sums of loss, correct predictions and samples that passes over the model leave on the device, one for each
/// virtual rank of this rank (one without virtual ranks). Totals are added in the order of virtual ranks.
class MetricBuffers {
 public:
  /// `may_skip`: the sums of a step count only if the step is not left out. World and device outlive this.
  MetricBuffers(const VirtualRanks& ranks, bool may_skip, const World& world, Device& device);

  /// Where the `i`th virtual rank's training step adds.
  MetricSums* step(std::int64_t i) const { return at(may_skip_ ? Part::step : Part::training, i); }
  MetricSums* evaluation(std::int64_t i) const { return at(Part::evaluation, i); }
  /// At the end of a step, in the order of the compute stream: adds the step's sums unless `found` leaves the step out.
  void finish_step(const NonFinite* found);

  std::size_t count() const { return static_cast<std::size_t>(count_); }
  /// Training sums since take_training(), of each virtual rank. Waits.
  std::vector<MetricSums> training() const { return read(Part::training); }
  void set_training(std::vector<MetricSums> sums);  ///< Missing ones are zero.

  /// Totals over all ranks, which are then zero. Collective; wait.
  MetricSums take_training() { return take(Part::training); }
  MetricSums take_evaluation() { return take(Part::evaluation); }
  /// Remembers the training sums, in the order of the steps; does not wait.
  void mark_training();
  /// Total over all ranks since mark_training(), with no take_training() in between. Collective; waits.
  MetricSums since_mark() const;

 private:
  enum class Part : std::uint8_t { training, evaluation, step, marked };

  MetricSums* at(Part part, std::int64_t i) const;
  std::size_t bytes() const { return count() * sizeof(MetricSums); }
  std::vector<MetricSums> read(Part part) const;
  MetricSums take(Part part);
  MetricSums total(const std::vector<MetricSums>& mine) const;

  VirtualRanks ranks_;
  std::int64_t count_;
  bool may_skip_;
  const World& world_;
  Device& device_;
  Buffer sums_;  ///< Part by part.
};

}  // namespace ddptrain
