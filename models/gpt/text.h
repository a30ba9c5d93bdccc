#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/text/bpe_tokenizer.h"

namespace ddptrain {

/// Text as tokens and back, through `tokenizer` where there is one, else bytes (tokens above 255 as numbers).
std::vector<std::uint16_t> to_tokens(const std::string& text, const BpeTokenizer* tokenizer);
std::string to_text(const std::vector<std::uint16_t>& tokens, const BpeTokenizer* tokenizer);

}  // namespace ddptrain
