#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// What an operation wrote, by name.
using Outputs = std::vector<std::pair<std::string, Values>>;

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
