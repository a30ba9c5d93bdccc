#pragma once

#include <cstdint>
#include <vector>

namespace ddptrain {

/// Random text of known entropy: a first-order Markov chain in which every token has four successors, with the
/// probabilities 1/2, 1/4, 1/8 and 1/8. Which four depends on the seed: pi((rho(a) + j) mod vocabulary), j = 0 to 3,
/// with two random permutations pi and rho. For any vocabulary the chain reaches every token, and all tokens are
/// equally frequent in the long run.
struct SyntheticTokens {
  std::int64_t count = 0;
  std::int64_t vocabulary = 0;  ///< 1 to 2^32 - 1
  std::uint64_t seed = 0;

  /// Entropy rate in nats per token: the lowest mean loss on fresh text, which a model reaches if it has learned the
  /// chain. It is H(1/2, 1/4, 1/8, 1/8) = 1.75 ln 2 = 1.2130 for vocabularies of 4 or more; below, successors coincide.
  double entropy() const;

  /// The text, with one byte per token for vocabularies up to 256, two up to 65,536, otherwise four (little-endian).
  /// The same on every machine.
  std::vector<std::uint8_t> generate() const;
  std::uint8_t token_bytes() const { return vocabulary <= 256 ? 1 : vocabulary <= 65536 ? 2 : 4; }
};

}  // namespace ddptrain
