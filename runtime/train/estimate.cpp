#include "runtime/train/estimate.h"

#include <array>
#include <cmath>
#include <numeric>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// The 97.5% quantile of Student's distribution.
double student(std::size_t degrees) {
  constexpr std::array kFirst = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                 2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  if (degrees <= kFirst.size()) return kFirst[degrees - 1];
  return 1.960 + 2.6 / static_cast<double>(degrees);  // 0.005 too large at most
}

double mean(const std::vector<double>& values) {
  DDP_CHECK(!values.empty(), "an estimate of nothing");
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

Estimate estimate_mean(const std::vector<double>& observations) {
  Estimate result{mean(observations)};
  const std::size_t count = observations.size();
  if (count < 2) return result;
  double squares = 0.0;
  for (const double value : observations) squares += (value - result.value) * (value - result.value);
  const auto n = static_cast<double>(count);
  result.half_width = student(count - 1) * std::sqrt(squares / (n - 1.0) / n);
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
