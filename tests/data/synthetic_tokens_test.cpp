#include "data/text/synthetic_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

std::vector<std::uint32_t> tokens_of(const SyntheticTokens& text) {
  const std::vector<std::uint8_t> bytes = text.generate();
  std::vector<std::uint32_t> tokens(static_cast<std::size_t>(text.count));
  EXPECT_EQ(bytes.size(), tokens.size() * text.token_bytes());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::memcpy(&tokens[i], bytes.data() + i * text.token_bytes(), text.token_bytes());
  }
  return tokens;
}

std::string hash_of(const SyntheticTokens& text) {
  const std::vector<std::uint8_t> bytes = text.generate();
  Hash128 hash;
  hash.add(bytes.data(), bytes.size());
  return hash.hex();
}

/// Mean of -ln p(next | token), p being the observed frequencies: the loss of the best first-order model.
double bigram_entropy(const std::vector<std::uint32_t>& tokens) {
  std::map<std::uint32_t, std::map<std::uint32_t, double>> counts;
  for (std::size_t i = 0; i + 1 < tokens.size(); ++i) counts[tokens[i]][tokens[i + 1]] += 1;
  double sum = 0;
  for (const auto& [token, next] : counts) {
    double total = 0;
    for (const auto& [successor, count] : next) total += count;
    for (const auto& [successor, count] : next) sum -= count * std::log(count / total);
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

TEST(SyntheticTokens, ObservedEntropyIsWhatTheorySays) {
  for (const std::int64_t vocabulary : {1, 2, 3, 4, 5, 64, 256, 1000}) {
    const SyntheticTokens text{400000, vocabulary, 3};
    // About 3 free frequencies per token bias the estimate by 3 V / 2 N; one standard deviation is 0.7 / sqrt(N).
    const double tolerance = 0.005 + 1.5 * static_cast<double>(vocabulary) / 400000;
    EXPECT_NEAR(bigram_entropy(tokens_of(text)), text.entropy(), tolerance) << vocabulary;
  }
  EXPECT_NEAR((SyntheticTokens{1, 4, 0}.entropy()), 1.75 * std::log(2.0), 1e-12);
  EXPECT_NEAR((SyntheticTokens{1, 50257, 0}.entropy()), 1.75 * std::log(2.0), 1e-12);
  EXPECT_EQ((SyntheticTokens{1, 1, 0}.entropy()), 0.0);
}

TEST(SyntheticTokens, EveryTokenComesEquallyOften) {
  std::map<std::uint32_t, int> counts;
  for (const std::uint32_t token : tokens_of({500000, 50, 1})) ++counts[token];
  ASSERT_EQ(counts.size(), 50u);
  for (const auto& [token, count] : counts) EXPECT_NEAR(count, 10000, 600) << token;
}

TEST(SyntheticTokens, HaveAsManyBytesAsTheVocabularyNeeds) {
  for (const auto& [vocabulary, bytes] : {std::pair{256, 1}, {257, 2}, {65536, 2}, {65537, 4}, {200000, 4}}) {
    const SyntheticTokens text{5000, vocabulary, 1};
    EXPECT_EQ(text.token_bytes(), bytes);
    const std::vector<std::uint32_t> tokens = tokens_of(text);
    EXPECT_LT(*std::ranges::max_element(tokens), static_cast<std::uint32_t>(vocabulary));
    EXPECT_GT(*std::ranges::max_element(tokens), static_cast<std::uint32_t>(vocabulary - vocabulary / 20 - 2));
  }
}

TEST(SyntheticTokens, DependOnTheSeedAndOnNothingElse) {
  EXPECT_EQ(hash_of({10000, 256, 1}), hash_of({10000, 256, 1}));
  EXPECT_NE(hash_of({10000, 256, 1}), hash_of({10000, 256, 2}));
  EXPECT_EQ(hash_of({10000, 256, 1}), "4cc5cdaaf17a2d153cd35643e2beac81");
  EXPECT_EQ(hash_of({10000, 50257, 1}), "4d8079b64d7d95b7d65270ff7637e7e6");
}

}  // namespace
}  // namespace ddptrain
