#include "runtime/train/measure/estimate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

namespace ddptrain {
namespace {

TEST(Median, OfOddEvenAndNothing) {
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 1.0, 3.0, 2.0}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(Estimate, IsStudents) {
  const Estimate mean = estimate_mean({1.0, 4.0, 2.0, 3.0});  // neighbours are not alike
  EXPECT_DOUBLE_EQ(mean.value, 2.5);
  EXPECT_NEAR(mean.half_width, 3.18244631 * std::sqrt(5.0 / 3.0 / 4.0), 1e-7);
  EXPECT_TRUE(std::isinf(estimate_mean({1.0}).half_width));
  EXPECT_EQ(estimate_mean({1.0, 1.0, 1.0, 1.0}).half_width, 0.0);
  std::vector<double> many(101, 1.0);
  for (std::size_t i = 0; i < many.size(); i += 2) many[i] = -1.0;
  EXPECT_NEAR(estimate_mean(many).half_width, 1.983972 * std::sqrt((1.0 - 1.0 / 101.0 / 101.0) / 100.0), 1e-7);
}

/// The lag-1 correlation of these 8 is 1/8, and 0.4 without its bias. They tell as much as 8 x 0.6 / 1.4 = 24/7
/// independent observations: Student's distribution of 17/7 degrees of freedom has the quantile 3.651010.
TEST(Estimate, IsWiderIfNeighboursAreAlike) {
  const Estimate alike = estimate_mean({-1, -1, 1, 1, -1, -1, 1, 1});
  EXPECT_NEAR(alike.half_width, 3.651010 * std::sqrt(7.0 / 17.0), 1e-3);
  const Estimate trend = estimate_mean({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_NEAR(trend.half_width, student_quantile(0.025, 1.5) * std::sqrt(42.0 / 8.0 / 1.5), 1e-9);
}

/// 1 to 10 without 1 and 10, in an order without correlation: as 2 to 9, with 2 and 9 in place of 1 and 10 for the
/// variance of ten. Yuen's interval has 8 - 1 degrees of freedom, and its quantile is 2.364624.
TEST(TrimmedEstimate, LeavesOutATenthOnEachSide) {
  const std::vector<double> values = {6, 1, 10, 3, 8, 5, 9, 2, 7, 4};
  const Estimate trimmed = estimate_trimmed_mean(values);
  EXPECT_DOUBLE_EQ(trimmed.value, 5.5);
  const double squares = 2 * 0.25 + 2 * 2.25 + 2 * 6.25 + 4 * 12.25;
  EXPECT_NEAR(trimmed.half_width, 2.364624 * std::sqrt(squares / 9.0 / 10.0) / 0.8, 1e-6);
  std::vector<double> held_up = values;
  held_up[2] = 500.0;  // in place of 10
  EXPECT_DOUBLE_EQ(estimate_trimmed_mean(held_up).value, 5.5);
  EXPECT_DOUBLE_EQ(estimate_trimmed_mean(held_up).half_width, trimmed.half_width);
  EXPECT_TRUE(std::isinf(estimate_trimmed_mean({1.0}).half_width));
  EXPECT_DOUBLE_EQ(estimate_trimmed_mean({1.0, 4.0, 2.0, 3.0}).half_width,
                   estimate_mean({1.0, 4.0, 2.0, 3.0}).half_width)
      << "too few to leave one out";
}

TEST(TrimmedEstimate, HoldsTheTruthAsOftenAsItSays) {
  constexpr unsigned kRuns = 1000;
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (const double held_up : {0.0, 0.05}) {
    for (const std::size_t count : {6, 12, 36}) {
      unsigned held = 0;
      for (unsigned run = 0; run < kRuns; ++run) {
        std::vector<double> values;
        while (values.size() < count) {
          values.push_back(normal(random));
          if (random() % 1000 < 1000 * held_up) values.back() += random() % 2 == 0 ? 30.0 : -30.0;
        }
        held += estimate_trimmed_mean(values).contains(0.0);
      }
      EXPECT_GE(held, 0.94 * kRuns) << count << " observations, held up: " << held_up;
      EXPECT_LE(held, 0.99 * kRuns) << count << " observations, held up: " << held_up;
    }
  }
}

/// A stationary series with mean 0 and variance 1.
std::vector<double> ar1(std::size_t count, double correlation, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<double> series = {normal(random)};
  while (series.size() < count) {
    series.push_back(correlation * series.back() + std::sqrt(1.0 - correlation * correlation) * normal(random));
  }
  return series;
}

TEST(Estimate, HoldsTheTruthAsOftenAsItsHeaderSays) {
  constexpr unsigned kRuns = 1000;
  std::mt19937 random(1);
  for (const auto& [correlation, least] : {std::pair{0.0, 0.95}, {0.5, 0.88}, {0.7, 0.81}}) {
    for (const std::size_t count : {4, 8, 20}) {
      unsigned held = 0;
      for (unsigned run = 0; run < kRuns; ++run) held += estimate_mean(ar1(count, correlation, random)).contains(0.0);
      EXPECT_GE(held, least * kRuns) << count << " observations, correlation " << correlation;
      EXPECT_LE(held, 0.985 * kRuns) << count << " observations, correlation " << correlation;
    }
  }
}

/// Halves of rounds, which alternate between two means. The rounds have lag-1 correlations of 0, 0.3, 0.5 and 0.7.
TEST(Estimate, OfHalvesOfCorrelatedRoundsHoldsTheTruth) {
  constexpr unsigned kRuns = 2000;
  std::mt19937 random(1);
  for (const double correlation : {0.0, 0.42, 0.62, 0.78}) {
    for (const auto& [rounds, least] : {std::pair<std::size_t, double>{4, 0.92}, {8, 0.93}, {20, 0.93}}) {
      unsigned held = 0;
      for (unsigned run = 0; run < kRuns; ++run) {
        std::vector<double> series = ar1(2 * rounds, correlation, random);
        for (std::size_t i = 0; i < series.size(); ++i) series[i] = 100.0 + series[i] + (i % 2 == 0 ? 5.0 : -5.0);
        held += estimate_alternating_ratio(series, std::vector(series.size(), 100.0)).contains(1.0);
      }
      EXPECT_GE(held, least * kRuns) << rounds << " rounds, correlation " << correlation;
      EXPECT_LE(held, 0.99 * kRuns) << rounds << " rounds, correlation " << correlation;
    }
  }
}

TEST(Estimate, QuantilesAreThoseOfTables) {
  EXPECT_NEAR(student_quantile(0.025, 1), 12.70620, 1e-4);
  EXPECT_NEAR(student_quantile(0.025, 1.5), 6.01666, 1e-2);
  EXPECT_NEAR(student_quantile(0.025, 2.5), 3.57465, 1e-4);
  EXPECT_NEAR(student_quantile(0.025, 7), 2.36462, 1e-5);
  EXPECT_NEAR(student_quantile(0.05, 2), 2.91999, 1e-5);
  EXPECT_NEAR(student_quantile(0.005, 30), 2.749996, 1e-5);
  EXPECT_NEAR(student_quantile(0.0005, 12), 4.31779, 1e-5);
  EXPECT_NEAR(student_quantile(0.025, 100'000), 1.95999, 1e-4);
}

TEST(Estimate, OfTheLargestOfSeveralIsWider) {
  const std::vector<double> values = {1.0, 4.0, 2.0, 3.0};
  const double ratio = estimate_mean(values, 8).half_width / estimate_mean(values).half_width;
  EXPECT_NEAR(ratio, student_quantile(0.025 / 8, 3) / student_quantile(0.025, 3), 1e-9);
  EXPECT_GT(ratio, 2.0);
}

TEST(Estimate, OfARatioKnowsWhatChangesBothAlike) {
  const Estimate same = estimate_ratio({1.0, 2.0, 3.0}, {2.0, 4.0, 6.0});
  EXPECT_DOUBLE_EQ(same.value, 0.5);
  EXPECT_NEAR(same.half_width, 0.0, 1e-12);
  EXPECT_GT(estimate_ratio({1.0, 2.0, 3.0}, {6.0, 4.0, 2.0}).half_width, 0.1);
}

}  // namespace
}  // namespace ddptrain
