#include "data/text/pre_tokenizer.h"
#include "runtime/core/error.h"

/// In place of pre_tokenizer.cpp in a build without PCRE2.

namespace ddptrain {

struct PreTokenizer::Regex {};

bool built_with_pre_tokenizer() { return false; }

PreTokenizer::PreTokenizer() {
  usage_error(
      "GPT-2's tokenizer is not in this build, which was made without PCRE2: install libpcre2-dev and build again, or "
      "use token files (.bin)");
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::split(std::string_view, const std::function<void(std::string_view)>&) const {
  fail("a tokenizer in a build without PCRE2");
}

}  // namespace ddptrain
