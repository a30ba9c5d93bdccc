#pragma once

#include <limits>
#include <vector>

namespace ddptrain {

/// A value with its 95% confidence interval, value - half_width to value + half_width: Student's, of observations whose
/// errors are independent. Infinite of fewer than two observations.
struct Estimate {
  double value = 0.0;
  double half_width = std::numeric_limits<double>::infinity();

  bool contains(double truth) const { return truth >= value - half_width && truth <= value + half_width; }
};

/// Of the mean. Error of nothing.
Estimate estimate_mean(const std::vector<double>& observations);

/// Of mean(numerators) / mean(denominators), where the i-th of both were observed together: what changes both alike
/// does not widen the interval. Error of nothing, or where the lengths differ.
Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

}  // namespace ddptrain
