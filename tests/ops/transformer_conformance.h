#pragma once

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>

#include "tests/ops/conformance.h"

namespace ddptrain::tests {

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
};

/// The largest head of attention kernels. Large heads do not fit the memory of a small GPU
/// (docs/reference/platforms.md), also where one is emulated.
inline std::int64_t largest_head() {
  const char* limit = std::getenv("DDPTRAIN_SHARED_MEMORY_LIMIT");
  const int kib = limit == nullptr ? 163 : std::atoi(limit);
  return kib < 66 ? 64 : kib < 130 ? 128 : 256;
}

inline Tensor put_statistics(Bench& bench, const Shape& shape) {
  return bench.put_master(Values(static_cast<std::size_t>(element_count(shape)), std::nan("")), shape);
}

}  // namespace ddptrain::tests
