#pragma once

#include <cmath>
#include <memory>
#include <string>

#include "tests/ops/conformance.h"

namespace ddptrain::tests {

/// In which type the gradients of parameters are kept, and whether there are some to add to.
struct GradientCase {
  bool accumulate, master;
};
inline constexpr GradientCase kGradientCases[] = {{false, false}, {true, false}, {false, true}, {true, true}};

inline std::string describe(const Shape& shape, GradientCase gradient) {
  return describe(shape, fmt::format("accumulate {} master {}", gradient.accumulate, gradient.master));
}

/// The gradient of logits, and the sums that were added to.
struct Loss {
  Values gradient;
  MetricSums sums;
};

/// Every operation of transformers, on every device, against the CPU in double precision, which sees the same (rounded)
/// inputs. Each family of operations has a file of tests; transformer_conformance_test.cpp lists the devices.
class TransformerConformanceTest : public AgainstOracle {
 public:
  using AgainstOracle::compare;

 protected:
  /// As compare(), of a loss. Returns what the tested device gives.
  Loss compare_loss(const std::string& what, const std::function<Loss(Bench&)>& work) {
    Bench tested(*tested_);
    Bench oracle(*oracle_, tested_->dtype());
    const Loss out = work(tested), expected = work(oracle);
    EXPECT_LE(relative_error(out.gradient, expected.gradient), GetParam().tolerance) << what;
    EXPECT_NEAR(out.sums.loss, expected.sums.loss, 1e-5 * expected.sums.loss) << what;
    EXPECT_EQ(out.sums.correct, expected.sums.correct) << what;
    EXPECT_EQ(out.sums.samples, expected.sums.samples) << what;
    return out;
  }

  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    make_tested();
    oracle_ = make_cpu_device({.precision = Precision::fp64, .threads = 2});
  }

  void make_tested() {
    DeviceOptions options;
    options.precision = GetParam().precision;
    options.tune = GetParam().name.ends_with("tuned");
    options.threads = 2;
    tested_ = GetParam().kind == DeviceKind::cpu ? make_cpu_device(options) : make_cuda_device(options, 0);
  }
};

inline Tensor gradient(Bench& bench, GradientCase c, const Shape& shape) {
  const std::int64_t count = element_count(shape);
  const Values values =
      c.accumulate ? bench.rounded(random_values(count, 99)) : Values(static_cast<std::size_t>(count), std::nan(""));
  return c.master ? bench.put_master(values, shape) : bench.put(values, shape);
}

inline Tensor put(Bench& bench, const Shape& shape, std::uint32_t seed, double limit = 1.0) {
  return bench.put(random_values(element_count(shape), seed, -limit, limit), shape);
}

inline Tensor put_statistics(Bench& bench, const Shape& shape) {
  return bench.put_master(Values(static_cast<std::size_t>(element_count(shape)), std::nan("")), shape);
}

}  // namespace ddptrain::tests
