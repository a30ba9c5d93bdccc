#pragma once

#include <functional>

#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// One argument of an operation: where it starts, and the gradient that backward gave it.
struct Argument {
  std::string name;
  Values values;
  Values gradient;
};

/// Checks the gradients of loss(values of the arguments) along random directions.
inline void check_gradients(std::vector<Argument> arguments,
                            const std::function<double(const std::vector<Values>&)>& loss) {
  constexpr double kStep = 1e-6;
  std::vector<Values> values;
  for (const Argument& argument : arguments) values.push_back(argument.values);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    for (const std::uint32_t seed : {1001u, 1002u, 1003u}) {
      const Values direction = random_values(static_cast<std::int64_t>(values[i].size()), seed);
      const auto moved = [&](double step) {
        std::vector<Values> at = values;
        for (std::size_t j = 0; j < direction.size(); ++j) at[i][j] += step * direction[j];
        return loss(at);
      };
      const double measured = (moved(kStep) - moved(-kStep)) / (2 * kStep);
      double expected = 0.0;
      for (std::size_t j = 0; j < direction.size(); ++j) expected += arguments[i].gradient[j] * direction[j];
      EXPECT_NEAR(measured, expected, 1e-6 * (std::abs(expected) + 1e-2)) << arguments[i].name;
    }
  }
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace ddptrain::tests
