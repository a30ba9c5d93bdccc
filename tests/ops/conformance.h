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

/// In which type the gradients of parameters are kept, and whether there are some to add to.
struct GradientCase {
  bool accumulate, master;
};

/// A gradient before an operation writes it or adds to it. Its values are NaN if the operation does not add.
inline Tensor gradient(Bench& bench, GradientCase c, const Shape& shape) {
  const std::int64_t count = element_count(shape);
  const Values values =
      c.accumulate ? bench.rounded(random_values(count, 99)) : Values(static_cast<std::size_t>(count), std::nan(""));
  return c.master ? bench.put_master(values, shape) : bench.put(values, shape);
}

inline Tensor put(Bench& bench, const Shape& shape, std::uint32_t seed, double limit = 1.0) {
  return bench.put(random_values(element_count(shape), seed, -limit, limit), shape);
}

/// Compares a device under test with the CPU's device in double precision. Both get the same (rounded) inputs.
class AgainstOracle : public ::testing::TestWithParam<DeviceCase> {
 public:
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

 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    make_tested();
    oracle_ = make_cpu_device({.precision = Precision::fp64, .threads = 2});
  }
  void make_tested() { tested_ = make_device(GetParam(), 2); }

  std::unique_ptr<Device> tested_;
  std::unique_ptr<Device> oracle_;
};

}  // namespace ddptrain::tests
