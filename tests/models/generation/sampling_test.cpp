#include "models/generation/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace ddptrain {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, -2.0f, 2.5f, 3.0f};

/// How often each token comes in `draws` positions.
std::map<std::uint32_t, int> counts(const Sampling& sampling, std::uint32_t draws) {
  std::map<std::uint32_t, int> counts;
  for (std::uint32_t position = 0; position < draws; ++position) {
    ++counts[sample_token(kLogits, sampling, 0, position)];
  }
  return counts;
}

std::set<std::uint32_t> tokens_of(const Sampling& sampling) {
  std::set<std::uint32_t> tokens;
  for (const auto& [token, count] : counts(sampling, 5000)) tokens.insert(token);
  return tokens;
}

TEST(Sampling, TemperatureZeroTakesTheFirstOfTheLikeliestTokens) {
  EXPECT_EQ(tokens_of({.temperature = 0.0}), (std::set<std::uint32_t>{1}));
}

TEST(Sampling, TheLikeliestOfManyTokensIsFoundAnywhere) {
  for (const std::size_t place : {0, 1, 1023, 1024, 2047, 4999}) {
    for (const float others : {-7.5f, -0.0f, 3.0f}) {
      std::vector<float> logits(5000, others);
      logits[place] += 0.5f;
      EXPECT_EQ(sample_token(logits, {.temperature = 0.0}, 0, 0), place) << others;
      logits.back() = logits[place];
      EXPECT_EQ(sample_token(logits, {.temperature = 0.0}, 0, 0), place) << others;
      EXPECT_EQ(sample_token(logits, {.temperature = 0.001}, 0, 7) == place ||
                    sample_token(logits, {.temperature = 0.001}, 0, 7) == 4999,
                true);
    }
  }
}

TEST(Sampling, LogitsThatAreNotFiniteAreSeen) {
  std::vector<float> logits(3000, -1e38f);
  EXPECT_TRUE(all_finite(logits));
  for (const float bad : {std::nanf(""), -std::nanf(""), INFINITY, -INFINITY}) {
    for (const std::size_t place : {0, 1500, 2999}) {
      std::vector<float> with = logits;
      with[place] = bad;
      EXPECT_FALSE(all_finite(with)) << bad << ' ' << place;
    }
  }
}

TEST(Sampling, TokensComeAsOftenAsTheirProbability) {
  constexpr std::uint32_t kDraws = 50000;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    double sum = 0.0;
    for (const float logit : kLogits) sum += std::exp(logit / temperature);
    const auto found = counts({.temperature = temperature, .seed = 5}, kDraws);
    for (std::uint32_t token = 0; token < kLogits.size(); ++token) {
      const double probability = std::exp(kLogits[token] / temperature) / sum;
      const auto count = found.find(token);
      const double share = count == found.end() ? 0.0 : count->second / static_cast<double>(kDraws);
      EXPECT_NEAR(share, probability, 5.0 * std::sqrt(probability / kDraws)) << temperature << ' ' << token;
    }
  }
}

TEST(Sampling, OnlySomeOfTheLikeliestTokensMayCome) {
  using Set = std::set<std::uint32_t>;
  EXPECT_EQ(tokens_of({.top_k = 1}), Set{1});
  EXPECT_EQ(tokens_of({.top_k = 2}), (Set{1, 4}));
  EXPECT_EQ(tokens_of({.top_k = 3}), (Set{1, 3, 4}));
  EXPECT_EQ(tokens_of({.top_k = 9}), (Set{0, 1, 2, 3, 4}));
  EXPECT_EQ(tokens_of({.top_p = 0.3}), Set{1});  // 0.38 each, 0.23, 0.05, 0.003
  EXPECT_EQ(tokens_of({.top_p = 0.5}), (Set{1, 4}));
  EXPECT_EQ(tokens_of({.top_p = 0.9}), (Set{1, 3, 4}));
  EXPECT_EQ(tokens_of({.top_k = 2, .top_p = 0.9}), (Set{1, 4}));
}

TEST(Sampling, SeedTextAndPositionDecide) {
  const auto draws = [](std::uint64_t seed, std::uint32_t text) {
    std::vector<std::uint32_t> tokens;
    for (std::uint32_t position = 0; position < 40; ++position) {
      tokens.push_back(sample_token(kLogits, {.seed = seed}, text, position));
    }
    return tokens;
  };
  EXPECT_EQ(draws(1, 0), draws(1, 0));
  EXPECT_NE(draws(1, 0), draws(2, 0));
  EXPECT_NE(draws(1, 0), draws(1, 1));
}

}  // namespace
}  // namespace ddptrain
