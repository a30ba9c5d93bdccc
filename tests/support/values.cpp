#include "tests/support/values.h"

#include <cmath>
#include <limits>

#include "runtime/core/random.h"

namespace ddptrain::tests {

Values random_values(std::int64_t count, std::uint32_t seed, double low, double high) {
  Values values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Philox bits = philox(static_cast<std::uint32_t>(i), seed, 0, 0, 42);
    values[i] = low + (high - low) * (bits.word[0] + bits.word[1] / 4294967296.0) / 4294967296.0;
  }
  return values;
}

Values random_eighths(std::int64_t count, std::uint32_t seed, double limit) {
  Values values = random_values(count, seed, -limit * 8, limit * 8);
  for (double& value : values) value = std::round(value) / 8;
  return values;
}

double norm(const Values& values) {
  double sum = 0.0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

double relative_error(const Values& out, const Values& expected) {
  if (out.size() != expected.size()) return std::numeric_limits<double>::quiet_NaN();
  Values difference(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) difference[i] = out[i] - expected[i];
  const double error = norm(difference);
  return error == 0.0 ? 0.0 : error / norm(expected);
}

}  // namespace ddptrain::tests
