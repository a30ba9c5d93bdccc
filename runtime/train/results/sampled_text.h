#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddptrain {

/// A prompt, as a language model has continued it during training.
struct SampledText {
  std::vector<std::uint32_t> prompt;
  std::vector<std::uint32_t> tokens;  ///< The continuation.
  std::optional<std::string> text;    ///< Both, if tokens are bytes.
  bool finite = true;                 ///< False: it ends because a logit was NaN or infinite.
  double seconds = 0.0;
};

}  // namespace ddptrain
