#include "runtime/train/measure/estimate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// The integral of cos^(degrees - 1) from `angle` to pi / 2 by Simpson's rule. Negligible values are left out.
double tail(double angle, double degrees) {
  constexpr int kParts = 128;
  const double end = std::min(0.5 * std::numbers::pi, angle + 9.0 / std::sqrt(degrees));
  const double width = (end - angle) / kParts;
  double sum = 0.0;
  for (int i = 0; i <= kParts; ++i) {
    const double weight = i == 0 || i == kParts ? 1.0 : i % 2 == 1 ? 4.0 : 2.0;
    sum += weight * std::pow(std::max(std::cos(angle + i * width), 0.0), degrees - 1.0);
  }
  return sum * width / 3.0;
}

/// The number of independent observations that would give the same precision of the mean. `caution` adds to a
/// correlation above 0.
double effective_count(const std::vector<double>& deviations, double squares, double caution) {
  constexpr double kFewest = 2.5;  // with fewer, a high correlation by chance would make the interval useless
  const auto n = static_cast<double>(deviations.size());
  const double products = std::inner_product(deviations.begin() + 1, deviations.end(), deviations.begin(), 0.0);
  if (n < 4.0 || n * products + squares <= 0.0) return n;
  double correlation = (n * products / squares + 1.0) / (n - 3.0);  // Kendall's correction of the bias
  correlation += caution * std::max(1.0 - correlation, 0.0) / std::sqrt(n);
  return std::max(kFewest, n * (1.0 - correlation) / (1.0 + correlation));
}

/// The fewest degrees of freedom of an interval of `n` observations of two kinds. With fewer than 16, a correlation
/// that they do not show can be high.
double fewest_degrees(double n) { return n < 16.0 ? std::max(1.0, 2.0 - 2.0 * std::pow(4.0 / n, 3.0)) : 2.0; }

/// What is left of each numerator without what the ratio of the means explains, relative to the denominators' mean.
std::vector<double> ratio_deviations(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  DDP_CHECK(numerators.size() == denominators.size(), "{} numerators, {} denominators", numerators.size(),
            denominators.size());
  const double below = mean(denominators);
  const double ratio = mean(numerators) / below;
  std::vector<double> deviations;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    deviations.push_back((numerators[i] - ratio * denominators[i]) / below);
  }
  return deviations;
}

}  // namespace

double mean(const std::vector<double>& values) {
  DDP_CHECK(!values.empty(), "a mean of nothing");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

double student_quantile(double above, double degrees) {
  DDP_CHECK(above > 0.0 && above < 0.5 && degrees >= 1.0, "a quantile above {} of {} degrees", above, degrees);
  const double log_scale = std::lgamma(0.5 * (degrees + 1.0)) - std::lgamma(0.5 * degrees);
  const double wanted = above / std::exp(log_scale) * std::sqrt(std::numbers::pi);
  double angle = 0.0;                                     // its tangent is the quantile / sqrt(degrees)
  for (double step = 1.0; step > 1e-12; angle += step) {  // Newton's method: as `tail` is convex, from one side
    step = (tail(angle, degrees) - wanted) / std::pow(std::cos(angle), degrees - 1.0);
  }
  return std::sqrt(degrees) * std::tan(angle);
}

Estimate estimate_mean(const std::vector<double>& observations, std::size_t candidates) {
  Estimate result{mean(observations)};
  if (observations.size() < 2) return result;
  std::vector<double> deviations = observations;
  for (double& value : deviations) value -= result.value;
  const double squares = std::inner_product(deviations.begin(), deviations.end(), deviations.begin(), 0.0);
  const double degrees = effective_count(deviations, squares, 0.0) - 1.0;
  const double variance = squares / static_cast<double>(observations.size()) / degrees;  // variance of the mean
  result.half_width = student_quantile(0.025 / static_cast<double>(candidates), degrees) * std::sqrt(variance);
  return result;
}

Estimate estimate_trimmed_mean(const std::vector<double>& observations) {
  const std::size_t n = observations.size();
  const std::size_t cut = n / 10;
  std::vector<double> sorted = observations;
  std::ranges::sort(sorted);
  const auto at = [&sorted](std::size_t i) { return sorted.begin() + static_cast<std::ptrdiff_t>(i); };
  Estimate result{mean({at(cut), at(n - cut)})};
  if (n < 2) return result;
  std::vector<double> deviations;
  for (const double value : observations) deviations.push_back(std::clamp(value, sorted[cut], sorted[n - 1 - cut]));
  const double middle = mean(deviations);
  for (double& value : deviations) value -= middle;
  const double squares = std::inner_product(deviations.begin(), deviations.end(), deviations.begin(), 0.0);
  const double count = effective_count(deviations, squares, 0.0);
  const double kept = static_cast<double>(n - 2 * cut) / static_cast<double>(n);
  const double variance = squares / static_cast<double>(n) / (count - 1.0) / (kept * kept);
  result.half_width = student_quantile(0.025, std::max(1.0, count * kept - 1.0)) * std::sqrt(variance);
  return result;
}

Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  const std::vector<double> deviations = ratio_deviations(numerators, denominators);
  return {mean(numerators) / mean(denominators), estimate_mean(deviations).half_width};
}

Estimate estimate_alternating_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  constexpr double kCaution = 0.6;  // chosen by simulation, as fewest_degrees(): see the header
  std::vector<double> deviations = ratio_deviations(numerators, denominators);
  Estimate result{mean(numerators) / mean(denominators)};
  if (deviations.size() < 4) return result;
  for (const std::size_t kind : {0, 1}) {
    std::vector<double> of_kind;
    for (std::size_t i = kind; i < deviations.size(); i += 2) of_kind.push_back(deviations[i]);
    const double middle = mean(of_kind);
    for (std::size_t i = kind; i < deviations.size(); i += 2) deviations[i] -= middle;
  }
  const double squares = std::inner_product(deviations.begin(), deviations.end(), deviations.begin(), 0.0);
  const auto n = static_cast<double>(deviations.size());
  const double degrees = std::max(effective_count(deviations, squares, kCaution) - 2.0, fewest_degrees(n));
  result.half_width = student_quantile(0.025, degrees) * std::sqrt(squares / n / degrees);
  return result;
}

}  // namespace ddptrain
