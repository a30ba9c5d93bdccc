#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace ddptrain {

double median(std::vector<double> values);  ///< NaN without values.

/// Measures samples per second in windows of steps between two synchronizations.
struct Rate {
  double median = std::numeric_limits<double>::quiet_NaN();
  double min = median;
  double max = median;
  std::size_t windows = 0;
  double seconds = 0.0;  ///< The sum over these windows.
};

class Meter {
 public:
  /// `samples` of all ranks; `seconds` on the slowest of them.
  void add(std::uint64_t samples, double seconds);

  /// Over all windows but the first, which holds what happens once; over that one where there is no other. Neighbours
  /// are joined until they last a second, so that no short one decides.
  Rate rate() const;
  /// Samples per second over the windows from number `first_window` on, without window 0 unless it is the only
  /// one. NaN without windows.
  double rate_since(std::size_t first_window) const;
  std::size_t windows() const { return windows_.size(); }
  double seconds() const;  ///< In all windows.

 private:
  struct Window {
    std::uint64_t samples;
    double seconds;
  };
  std::vector<Window> windows_;
};

}  // namespace ddptrain
