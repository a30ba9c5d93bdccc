#include "runtime/train/estimate.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// That Student's distribution exceeds sqrt(degrees) tan(angle): the integral of cos^(degrees - 1) from there on, by
/// Simpson's rule, as far as it is not negligible.
double probability_above(double angle, double degrees) {
  constexpr int kParts = 128;
  const double end = std::min(0.5 * std::numbers::pi, angle + 9.0 / std::sqrt(degrees));
  const double width = (end - angle) / kParts;
  double sum = 0.0;
  for (int i = 0; i <= kParts; ++i) {
    const double weight = i == 0 || i == kParts ? 1.0 : i % 2 == 1 ? 4.0 : 2.0;
    sum += weight * std::pow(std::max(std::cos(angle + i * width), 0.0), degrees - 1.0);
  }
  const double log_scale = std::lgamma(0.5 * (degrees + 1.0)) - std::lgamma(0.5 * degrees);
  return sum * width / 3.0 * std::exp(log_scale) / std::sqrt(std::numbers::pi);
}

double mean(const std::vector<double>& values) {
  DDP_CHECK(!values.empty(), "an estimate of nothing");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

double student_quantile(double above, std::size_t degrees) {
  DDP_CHECK(above > 0.0 && above < 0.5 && degrees > 0, "a quantile above {} of {} degrees", above, degrees);
  const auto freedom = static_cast<double>(degrees);
  double low = 0.0, high = 0.5 * std::numbers::pi;
  for (int i = 0; i < 50; ++i) {
    const double middle = 0.5 * (low + high);
    (probability_above(middle, freedom) > above ? low : high) = middle;
  }
  return std::sqrt(freedom) * std::tan(0.5 * (low + high));
}

Estimate estimate_mean(const std::vector<double>& observations, std::size_t candidates) {
  Estimate result{mean(observations)};
  const std::size_t count = observations.size();
  if (count < 2) return result;
  double squares = 0.0;
  for (const double value : observations) squares += (value - result.value) * (value - result.value);
  const auto n = static_cast<double>(count);
  const double quantile = student_quantile(0.025 / static_cast<double>(candidates), count - 1);
  result.half_width = quantile * std::sqrt(squares / (n - 1.0) / n);
  return result;
}

Estimate estimate_ratio(const std::vector<double>& numerators, const std::vector<double>& denominators) {
  DDP_CHECK(numerators.size() == denominators.size(), "{} numerators, {} denominators", numerators.size(),
            denominators.size());
  const double below = mean(denominators);
  const double ratio = mean(numerators) / below;
  std::vector<double> deviations;
  for (std::size_t i = 0; i < numerators.size(); ++i) {
    deviations.push_back((numerators[i] - ratio * denominators[i]) / below);
  }
  return {ratio, estimate_mean(deviations).half_width};
}

}  // namespace ddptrain
