#pragma once

#include <cstdint>
#include <span>

namespace ddptrain {

/// How the next token is chosen from its logits.
struct Sampling {
  double temperature = 1.0;  ///< Divides the logits. 0: the likeliest token, and of equal ones the first.
  std::int64_t top_k = 0;    ///< Only the k likeliest tokens. 0: all.
  double top_p = 1.0;        ///< Only the likeliest tokens that together have this probability. At most 1.
  std::uint64_t seed = 1;
};

bool all_finite(std::span<const float> logits);

/// The next token. The same logits, settings, `text` (a number) and `position` (of the token) give the same token on
/// every machine.
std::uint32_t sample_token(std::span<const float> logits, const Sampling& sampling, std::uint32_t text,
                           std::uint32_t position);

}  // namespace ddptrain
