#include "models/generation/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/random.h"

namespace ddptrain {
namespace {

/// Distinguishes these random numbers from others of the same seed.
constexpr std::uint32_t kStream = 0x67656E;

/// Numbers that order logits as their values do. Unlike those, compilers find their maximum with vector instructions.
std::int32_t order(float logit) {
  const auto bits = std::bit_cast<std::int32_t>(logit + 0.0f);  // of the two zeros, the positive
  return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

/// The first of the largest.
std::uint32_t likeliest_of(std::span<const float> logits) {
  constexpr std::size_t kBlock = 1024;
  std::size_t best_block = 0;
  std::int32_t best = std::numeric_limits<std::int32_t>::min();
  for (std::size_t block = 0; block < logits.size(); block += kBlock) {
    std::int32_t largest = std::numeric_limits<std::int32_t>::min();
    for (const float logit : logits.subspan(block, std::min(kBlock, logits.size() - block))) {
      largest = std::max(largest, order(logit));
    }
    if (largest <= best) continue;
    best = largest;
    best_block = block;
  }
  std::size_t token = best_block;
  while (order(logits[token]) != best) ++token;
  return static_cast<std::uint32_t>(token);
}

/// Uniform in [0, 1).
double draw(std::uint64_t seed, std::uint32_t text, std::uint32_t position) {
  const Philox random = philox(position, text, kStream, 0, seed);
  const std::uint64_t bits = std::uint64_t{random.word[0]} << 32 | random.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

/// The tokens that may come, the likeliest first if only some may. Those whose probability is less than 10^-17 of the
/// likeliest one's are left out.
std::vector<std::uint32_t> candidates(std::span<const float> logits, float largest, const Sampling& sampling) {
  constexpr double kTemperatures = 40.0;
  const auto least = static_cast<float>(largest - kTemperatures * sampling.temperature);
  std::vector<std::uint32_t> tokens;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= least) tokens.push_back(static_cast<std::uint32_t>(i));
  }
  const bool limits = sampling.top_k > 0 && sampling.top_k < std::ssize(tokens);
  if (!limits && sampling.top_p >= 1.0) return tokens;
  const auto end = limits ? tokens.begin() + sampling.top_k : tokens.end();
  std::partial_sort(tokens.begin(), end, tokens.end(), [&](std::uint32_t a, std::uint32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  });
  tokens.erase(end, tokens.end());
  return tokens;
}

}  // namespace

bool all_finite(std::span<const float> logits) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  std::uint32_t others = 0;
  for (const float logit : logits) others |= (std::bit_cast<std::uint32_t>(logit) & kExponent) == kExponent ? 1 : 0;
  return others == 0;
}

std::uint32_t sample_token(std::span<const float> logits, const Sampling& sampling, std::uint32_t text,
                           std::uint32_t position) {
  DDP_CHECK(!logits.empty(), "no logits to choose a token from");
  const std::uint32_t likeliest = likeliest_of(logits);
  if (sampling.temperature <= 0.0) return likeliest;
  const std::vector<std::uint32_t> tokens = candidates(logits, logits[likeliest], sampling);
  std::vector<double> weights;
  weights.reserve(tokens.size());
  for (const std::uint32_t token : tokens) {
    weights.push_back(std::exp((static_cast<double>(logits[token]) - logits[likeliest]) / sampling.temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::size_t count = weights.size();
  double sum = all;
  if (sampling.top_p < 1.0) {
    sum = 0.0;
    for (count = 0; count < weights.size() && sum < sampling.top_p * all; ++count) sum += weights[count];
    count = std::max<std::size_t>(count, 1);
  }
  double left = draw(sampling.seed, text, position) * sum;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    left -= weights[i];
    if (left < 0.0) return tokens[i];
  }
  return tokens[count - 1];
}

}  // namespace ddptrain
