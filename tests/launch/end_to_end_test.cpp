#include <gtest/gtest.h>

#include "data/images/images.h"
#include "tests/launch/metrics.h"
#include "tests/launch/process.h"

namespace ddptrain {
namespace {

TEST(EndToEnd, AnEpochOfFashionMnistOnTwoCpuRanksReaches85Percent) {
  try {
    find_fashion_mnist();
  } catch (const UsageError& error) {
    GTEST_SKIP() << error.what();
  }
  const std::string metrics = testing::TempDir() + "ddptrain_end_to_end.jsonl";
  const Outcome outcome =
      train_on_cpu(2, "--device cpu --model cnn --batch 64 --epochs 1 --baseline off --metrics " + metrics);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto summary = summary_in(metrics);
  EXPECT_GE(summary.at("accuracy"), 0.85) << outcome.output;
  EXPECT_EQ(summary.at("steps"), 60000 / 128);
}

}  // namespace
}  // namespace ddptrain
