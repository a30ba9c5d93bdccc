#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/train/measure/calibration.h"

namespace ddptrain {

/// A job of GPUs whose clocks a test simulates, step by step.
class SimulatedGpus : public TimedJob {
 public:
  static constexpr std::size_t kRanks = 4;

  Window time(TimedWork work, std::uint64_t steps, std::uint64_t lead) override {
    for (std::uint64_t step = 0; step < lead; ++step) once(work);
    Window window{std::vector<double>(kRanks, 0.0)};
    for (std::uint64_t step = 0; step < steps; ++step) {
      const std::vector<double> one = once(work);
      for (std::size_t rank = 0; rank < kRanks; ++rank) window.seconds[rank] += one[rank];
    }
    return window;
  }

  std::vector<StepPair> time_pairs(std::uint64_t pairs, std::uint64_t lead) override {
    if (lead > 0) time_pairs(lead, 0);
    std::vector<StepPair> result(pairs);
    for (std::uint64_t i = 0; i < pairs; ++i) {
      const bool reversed = is_reversed(next_pair++);
      if (!reversed) result[i].step = once(TimedWork::step);
      result[i].compute_step = once(TimedWork::compute_step);
      if (reversed) result[i].step = once(TimedWork::step);
    }
    return result;
  }

  std::uint64_t next_pair = 0;

 protected:
  /// Seconds of a step of each rank, which moves the clocks.
  virtual std::vector<double> once(TimedWork work) = 0;
};

}  // namespace ddptrain
