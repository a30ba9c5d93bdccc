#pragma once

#include <cstdint>
#include <vector>

#include "models/language_model.h"
#include "runtime/device/device.h"

namespace ddptrain {

struct GenerateOptions {
  std::int64_t tokens = 200;    ///< To add to the prompt.
  float temperature = 0.8f;     ///< 0: always the likeliest token.
  std::int64_t top_k = 0;       ///< Of how many tokens, the likeliest ones, one is drawn; 0: of all.
  std::int64_t context = 1024;  ///< Tokens that the model sees at most.
  std::uint64_t seed = 1;
  std::uint32_t sample = 0;  ///< Others of the same seed draw other tokens.
};

/// The prompt and what a language model writes after it, token by token from its predictions' distribution. The same
/// for the same weights and options. Waits for the device. Error where the prompt is empty.
std::vector<std::uint16_t> generate(LanguageModel& model, Device& device, std::vector<std::uint16_t> prompt,
                                    const GenerateOptions& options);

}  // namespace ddptrain
