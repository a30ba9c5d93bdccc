#pragma once

#include <cstddef>
#include <limits>
#include <vector>

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

/// Error without values.
double mean(const std::vector<double>& values);

/// Estimates the mean. If the observed quantity was chosen as the largest of several, `candidates` is their number; the
/// interval is then wider (Bonferroni). Error without observations.
Estimate estimate_mean(const std::vector<double>& observations, std::size_t candidates = 1);

/// Estimates mean(numerators) / mean(denominators). The i-th values of both were observed together, so a change of both
/// does not widen the interval. Error without observations, or if the lengths differ.
Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

/// As estimate_ratio(), of observations of two kinds by turns, each with its own mean: a difference of the kinds does
/// not widen the interval. A correlation of neighbours counts for more than was measured, because a few observations
/// measure it badly. Fewer than four observations have no interval.
///
/// In simulations of the halves of 8 to 40 rounds the interval contained the truth in at least 95% of the cases with an
/// AR(1) series whose rounds have a correlation of up to 0.7, and in at least 92% if measuring stops as soon as it is
/// narrow. With independent rounds it is no wider than the interval of estimate_ratio() of whole rounds.
Estimate estimate_alternating_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

/// The value that Student's distribution with `degrees` degrees of freedom exceeds with probability `above`. `degrees`
/// is at least 1, and `above` is in (0, 0.5).
double student_quantile(double above, double degrees);

}  // namespace ddptrain
