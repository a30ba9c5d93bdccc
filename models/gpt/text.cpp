#include "models/gpt/text.h"

#include <algorithm>

#include "runtime/core/error.h"

namespace ddptrain {

std::vector<std::uint16_t> to_tokens(const std::string& text, const BpeTokenizer* tokenizer) {
  if (tokenizer != nullptr) return tokenizer->encode(text);
  std::vector<std::uint16_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string to_text(const std::vector<std::uint16_t>& tokens, const BpeTokenizer* tokenizer) {
  if (tokenizer != nullptr) return tokenizer->decode(tokens);
  std::string text;
  const bool bytes = std::all_of(tokens.begin(), tokens.end(), [](std::uint16_t token) { return token < 256; });
  for (const std::uint16_t token : tokens) {
    text += bytes ? std::string(1, static_cast<char>(token)) : fmt::format("{} ", token);
  }
  return text;
}

}  // namespace ddptrain
