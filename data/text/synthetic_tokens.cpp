#include "data/text/synthetic_tokens.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/core/error.h"
#include "runtime/core/random.h"
#include "runtime/core/step.h"

namespace ddptrain {
namespace {

/// In eighths, by successor.
constexpr std::array<int, 4> kWeights = {4, 2, 1, 1};
constexpr std::array<std::uint8_t, 8> kSuccessorOfDraw = {0, 0, 0, 0, 1, 1, 2, 3};

/// Ten draws of three bits from each random word.
class Draws {
 public:
  explicit Draws(std::uint64_t seed) : seed_(seed) {}

  std::uint32_t next() {
    if (left_ == 0) refill();
    const std::uint32_t draw = bits_ & 7u;
    bits_ >>= 3;
    --left_;
    return draw;
  }

 private:
  void refill() {
    if (word_ == 4) {
      random_ = philox(static_cast<std::uint32_t>(call_), static_cast<std::uint32_t>(call_ >> 32), 0, 3, seed_);
      ++call_;
      word_ = 0;
    }
    bits_ = random_.word[word_++];
    left_ = 10;
  }

  std::uint64_t seed_;
  std::uint64_t call_ = 0;
  Philox random_{};
  int word_ = 4;
  std::uint32_t bits_ = 0;
  int left_ = 0;
};

template <class T>
void walk(const SyntheticTokens& text, std::vector<std::uint8_t>& bytes) {
  const auto vocabulary = static_cast<std::uint32_t>(text.vocabulary);
  const Permutation rho(text.seed, 0, vocabulary);
  const Permutation pi(text.seed, 1, vocabulary);
  std::vector<std::array<T, 4>> successors(vocabulary);
  for (std::uint32_t token = 0; token < vocabulary; ++token) {
    for (std::uint32_t j = 0; j < 4; ++j) successors[token][j] = static_cast<T>(pi((rho(token) + j) % vocabulary));
  }
  Draws draws(text.seed);
  T token = 0;
  for (std::int64_t i = 0; i < text.count; ++i) {
    std::memcpy(bytes.data() + static_cast<std::size_t>(i) * sizeof(T), &token, sizeof(T));
    token = successors[token][kSuccessorOfDraw[draws.next()]];
  }
}

}  // namespace

double SyntheticTokens::entropy() const {
  std::array<double, 4> probability{};
  for (std::size_t j = 0; j < 4; ++j) probability[j % static_cast<std::size_t>(vocabulary)] += kWeights[j] / 8.0;
  double sum = 0.0;
  for (const double p : probability) {
    if (p > 0.0) sum -= p * std::log(p);
  }
  return sum;
}

std::vector<std::uint8_t> SyntheticTokens::generate() const {
  DDP_CHECK(count > 0 && vocabulary > 0 && vocabulary <= std::numeric_limits<std::uint32_t>::max(),
            "{} synthetic tokens of {}", count, vocabulary);
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count) * token_bytes());
  if (token_bytes() == 1) {
    walk<std::uint8_t>(*this, bytes);
  } else if (token_bytes() == 2) {
    walk<std::uint16_t>(*this, bytes);
  } else {
    walk<std::uint32_t>(*this, bytes);
  }
  return bytes;
}

}  // namespace ddptrain
