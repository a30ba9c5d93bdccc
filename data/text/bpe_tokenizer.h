#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/text/pre_tokenizer.h"

namespace ddptrain {

/// GPT-2's byte-level byte-pair encoding (Radford et al. 2019; merges of Sennrich et al. 2016): every text has tokens,
/// and decoding gives back its bytes, even if they are not UTF-8.
class BpeTokenizer {
 public:
  using Token = std::uint16_t;
  static constexpr const char* kEndOfText = "<|endoftext|>";

  /// Reads vocab.json and merges.txt of a GPT-2 model folder as Hugging Face lays it out. UsageError, naming the file,
  /// if one is missing or damaged, they do not belong together, a byte has no token, or there are more than 65,536
  /// tokens; also in a build without PCRE2.
  explicit BpeTokenizer(const std::filesystem::path& folder);

  /// In the text, "<|endoftext|>" means the token of that name, if there is one.
  std::vector<Token> encode(std::string_view text) const;
  /// UsageError if a token is not below vocabulary().
  std::string decode(const std::vector<Token>& tokens) const;

  std::int64_t vocabulary() const { return static_cast<std::int64_t>(bytes_.size()); }
  std::optional<Token> end_of_text() const { return end_of_text_; }

 private:
  struct Merge {
    std::uint32_t rank;
    Token token;
  };
  static std::uint32_t pair_of(Token left, Token right) { return std::uint32_t{left} << 16 | right; }

  void read_vocabulary(const std::filesystem::path& path);
  void read_merges(const std::filesystem::path& path);
  void encode_ordinary(std::string_view text, std::vector<Token>& tokens) const;
  std::vector<Token> merge(std::string_view piece) const;

  PreTokenizer pre_tokenizer_;
  std::vector<std::string> bytes_;  ///< The bytes of each token.
  std::array<Token, 256> byte_tokens_{};
  std::unordered_map<std::uint32_t, Merge> merges_;  ///< By pair_of().
  std::optional<Token> end_of_text_;
};

}  // namespace ddptrain
