#pragma once

namespace ddptrain {

/// Counts cycles of a GPU's multiprocessors. At the power limit their clock changes by per cents from step to step, and
/// the cycles of a step hardly do.
class CycleCounter {
 public:
  virtual ~CycleCounter() = default;
  // Queued on the compute stream.
  virtual void begin() = 0;
  virtual void end() = 0;
  /// From the newest begin() to the newest end(): the mean of the multiprocessors; 0: not known. The host waits for the
  /// device.
  virtual double cycles() = 0;
};

}  // namespace ddptrain
