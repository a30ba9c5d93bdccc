#include "data/text/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <string>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ with \s spelt out as Unicode's
/// White_Space, since PCRE2's \s has U+180E in addition.
constexpr const char* kPattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{Z}\t-\r\x{85}\p{L}\p{N}]+)"
                                 R"(|[\p{Z}\t-\r\x{85}]+(?![^\p{Z}\t-\r\x{85}])|[\p{Z}\t-\r\x{85}]+)";

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatchData>;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

int match(const pcre2_code* code, std::string_view text, std::uint32_t options, const MatchData& data) {
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options, data.get(), nullptr);
}

/// The part of `text` before the first byte that is no UTF-8.
std::string_view valid_prefix(const pcre2_code* code, std::string_view text, const MatchData& data) {
  const int result = match(code, text, PCRE2_ANCHORED, data);
  const bool invalid = result <= PCRE2_ERROR_UTF8_ERR1 && result >= PCRE2_ERROR_UTF8_ERR21;
  return invalid ? text.substr(0, pcre2_get_startchar(data.get())) : text;
}

}  // namespace

struct PreTokenizer::Regex {
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  std::unique_ptr<pcre2_code, Free> code;
};

bool built_with_pre_tokenizer() { return true; }

PreTokenizer::PreTokenizer() : regex_(std::make_unique<Regex>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  regex_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error,
                                   &offset, nullptr));
  DDP_CHECK(regex_->code, "pcre2_compile: {} at {}", message_of(error), offset);
  pcre2_jit_compile(regex_->code.get(), PCRE2_JIT_COMPLETE);  // faster if there is a compiler for this processor
}

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::split(std::string_view text, const std::function<void(std::string_view)>& piece) const {
  const pcre2_code* code = regex_->code.get();
  const MatchData data(pcre2_match_data_create_from_pattern(code, nullptr));
  DDP_CHECK(data, "pcre2_match_data_create: no memory");
  while (!text.empty()) {
    std::string_view valid = valid_prefix(code, text, data);
    text.remove_prefix(valid.size());
    while (!valid.empty()) {
      const int result = match(code, valid, PCRE2_ANCHORED | PCRE2_NO_UTF_CHECK, data);
      DDP_CHECK(result > 0, "pcre2_match: {}", message_of(result));
      const std::size_t length = pcre2_get_ovector_pointer(data.get())[1];
      piece(valid.substr(0, length));
      valid.remove_prefix(length);
    }
    if (!text.empty()) {
      piece(text.substr(0, 1));
      text.remove_prefix(1);
    }
  }
}

}  // namespace ddptrain
