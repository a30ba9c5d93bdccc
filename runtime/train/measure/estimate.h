#pragma once

#include <cstddef>
#include <vector>

#include "runtime/train/results/estimate.h"

namespace ddptrain {

/// Error without values.
double mean(const std::vector<double>& values);

double median(std::vector<double> values);  ///< NaN without values.

/// Estimates the mean. If the observed quantity was chosen as the largest of several, `candidates` is their number; the
/// interval is then wider (Bonferroni). Error without observations.
Estimate estimate_mean(const std::vector<double>& observations, std::size_t candidates = 1);

/// Estimates the mean of a symmetric distribution without the lowest and the highest tenth of the observations, which
/// may have been held up. The interval is Yuen's: Student's with the squares of the observations cut off at these
/// tenths. Error without observations.
Estimate estimate_trimmed_mean(const std::vector<double>& observations);

/// Estimates mean(numerators) / mean(denominators). The i-th values of both were observed together, so a change of both
/// does not widen the interval. Error without observations, or if the lengths differ.
Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

/// As estimate_ratio(), of observations of two kinds by turns, each with its own mean: a difference of the kinds does
/// not widen the interval. A correlation of neighbours counts for more than was measured, because a few observations
/// measure it badly. Fewer than four observations have no interval.
///
/// In simulations of an AR(1) series whose rounds have a correlation of up to 0.7, the interval contained the truth in
/// at least 95% of the cases with the halves of 8 to 40 rounds, and in at least 92% with those of 4 to 7. From 8 rounds
/// on it is no wider than the interval of estimate_ratio() of whole rounds, if these are independent.
Estimate estimate_alternating_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators);

/// The value that Student's distribution with `degrees` degrees of freedom exceeds with probability `above`. `degrees`
/// is at least 1, and `above` is in (0, 0.5).
double student_quantile(double above, double degrees);

}  // namespace ddptrain
