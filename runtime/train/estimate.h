#pragma once

#include <cstddef>
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

/// Of the mean. `candidates`: what is observed was chosen among so many because it was the largest, and its interval is
/// as much wider as holds the truth nevertheless (Bonferroni). Error of nothing.
Estimate estimate_mean(const std::vector<double>& observations, std::size_t candidates = 1);

/// Of mean(numerators) / mean(denominators), where the i-th of both were observed together: what changes both alike
/// does not widen the interval. Error of nothing, or where the lengths differ.
Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

/// The value that Student's distribution of `degrees` degrees of freedom exceeds with the probability `above`, in (0,
/// 0.5).
double student_quantile(double above, std::size_t degrees);

}  // namespace ddptrain
