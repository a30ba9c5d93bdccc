#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/train/results/rate.h"

namespace ddptrain {

/// Measures samples per second in windows of steps.
class Meter {
 public:
  /// `samples` of all ranks; `seconds` on the slowest of them.
  void add(std::uint64_t samples, double seconds);

  /// Over all windows but the first, because the first one has work that happens only once. If there is no other
  /// window, over that one. Consecutive windows are joined until they last a second, so that no short window decides.
  Rate rate() const;
  /// Samples per second over the windows from number `first_window` on, without window 0 unless it is the only
  /// one. NaN without windows.
  double rate_since(std::size_t first_window) const;
  std::size_t windows() const { return windows_.size(); }
  double seconds() const;           ///< In all windows.
  double repeated_seconds() const;  ///< In all windows but the first.

 private:
  struct Window {
    std::uint64_t samples;
    double seconds;
  };
  std::vector<Window> windows_;
};

}  // namespace ddptrain
