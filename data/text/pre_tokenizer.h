#pragma once

#include <functional>
#include <memory>
#include <string_view>

namespace ddptrain {

/// False in a build without PCRE2.
bool built_with_pre_tokenizer();

/// Cuts text into the pieces within which GPT-2's byte-pair merges happen: contractions, words and numbers, each with
/// a space before it, other signs, white space (the regular expression of OpenAI's encoder.py).
class PreTokenizer {
 public:
  PreTokenizer();  ///< UsageError in a build without PCRE2.
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  /// Calls `piece` for each in order; together they are the text. It need not be valid UTF-8: a byte that belongs to no
  /// character is a piece. May be called from several threads.
  void split(std::string_view text, const std::function<void(std::string_view)>& piece) const;

 private:
  struct Regex;
  std::unique_ptr<Regex> regex_;
};

}  // namespace ddptrain
