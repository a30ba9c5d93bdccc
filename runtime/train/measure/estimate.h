#pragma once

#include <cstddef>
#include <limits>
#include <vector>

namespace ddptrain {

/// A value with its 95% confidence interval, value - half_width to value + half_width. Infinite for fewer than two
/// observations.
///
/// Observations are in the order in which they were made, because neighbours may be alike: a disturbance lasts longer
/// than one of them. n observations whose neighbours have the correlation r tell as much as n (1 - r) / (1 + r)
/// independent ones, and the interval is Student's for that number. r is measured (lag 1), corrected for its bias, and
/// taken as 0 if it is negative or if there are fewer than 4 observations.
///
/// In simulations of 4 to 40 observations the interval holds the truth in 96% to 97% of the cases if observations are
/// independent, in at least 90% if they are an AR(1) series with the correlation 0.5, and in at least 83% with 0.7. If
/// observations end as soon as the interval is narrow, but not before the eighth, it is at least 94%, 86% and 80%.
struct Estimate {
  double value = 0.0;
  double half_width = std::numeric_limits<double>::infinity();

  bool contains(double truth) const { return truth >= value - half_width && truth <= value + half_width; }
};

/// Error of nothing.
double mean(const std::vector<double>& values);

/// Of the mean. `candidates`: what is observed was chosen among so many because it was the largest, and its interval is
/// as much wider as holds the truth nevertheless (Bonferroni). Error of nothing.
Estimate estimate_mean(const std::vector<double>& observations, std::size_t candidates = 1);

/// Of mean(numerators) / mean(denominators), where the i-th of both were observed together: what changes both alike
/// does not widen the interval. Error of nothing, or where the lengths differ.
Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

/// The value that Student's distribution of `degrees` degrees of freedom, 1 or more, exceeds with the probability
/// `above`, in (0, 0.5).
double student_quantile(double above, double degrees);

}  // namespace ddptrain
