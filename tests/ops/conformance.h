#pragma once

#include <fmt/ranges.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// What an operation wrote, by name.
using Outputs = std::vector<std::pair<std::string, Values>>;

inline std::string describe(const Shape& shape, const std::string& note = "") {
  return fmt::format("[{}] {}", fmt::join(shape, ", "), note);
}

inline Dropout make_dropout(Bench& bench, float rate) {
  return {rate, 1234567890123ull, 2, 40, {bench.put_object(StepState{(1ull << 33) + 5}), 2}};
}

/// A device under test beside the CPU's in double precision, which sees the same (rounded) inputs. Who derives from it
/// makes both in SetUp().
class AgainstOracle : public ::testing::TestWithParam<DeviceCase> {
 protected:
  /// Runs `work` on both devices and compares what it returns, by name.
  void compare(const std::string& what, const std::function<Outputs(Bench&)>& work) {
    Bench tested(*tested_, tested_->dtype());
    Bench oracle(*oracle_, tested_->dtype());
    const Outputs out = work(tested);
    const Outputs expected = work(oracle);
    ASSERT_EQ(out.size(), expected.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_LE(relative_error(out[i].second, expected[i].second), GetParam().tolerance)
          << what << ": " << out[i].first;
    }
  }

  std::unique_ptr<Device> tested_;
  std::unique_ptr<Device> oracle_;
};

}  // namespace ddptrain::tests
