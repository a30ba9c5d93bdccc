#pragma once

#include <cstddef>
#include <limits>

namespace ddptrain {

/// Samples per second over windows of steps. A window is the steps between two waits for the device.
struct Rate {
  double median = std::numeric_limits<double>::quiet_NaN();
  double min = median;
  double max = median;
  std::size_t windows = 0;
  double seconds = 0.0;  ///< The sum over these windows.
};

/// Counts of windows of steps.
struct ClockWindows {
  std::size_t known = 0;  ///< The clocks are known.
  std::size_t fell = 0;   ///< A GPU's clock was more than 3% below its highest.
};

}  // namespace ddptrain
