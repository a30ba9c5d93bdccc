#pragma once

#include <limits>

namespace ddptrain {

/// A value with its 95% confidence interval, value - half_width to value + half_width. The interval is infinite for
/// fewer than two observations.
///
/// Observations are in the order of time. Successive observations may be correlated, because a disturbance can outlast
/// one of them. With a lag-1 correlation of r, n observations are worth n (1 - r) / (1 + r) independent ones, and the
/// interval is Student's for that number. The measured r is corrected for its bias. It counts as 0 if it is negative or
/// if there are fewer than 4 observations.
///
/// In simulations of 4 to 40 observations the interval contained the truth in 96% to 97% of the cases with independent
/// observations, and in at least 90% and 83% with an AR(1) series of correlation 0.5 and 0.7. If measuring stops as
/// soon as the interval is narrow, but not before the eighth observation, it is at least 94%, 86% and 80%.
struct Estimate {
  double value = 0.0;
  double half_width = std::numeric_limits<double>::infinity();

  double low() const { return value - half_width; }
  double high() const { return value + half_width; }
  bool contains(double truth) const { return truth >= low() && truth <= high(); }
};

}  // namespace ddptrain
