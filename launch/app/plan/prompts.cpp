#include "launch/app/plan/prompts.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <string_view>
#include <utility>

#include "data/text/tokens.h"
#include "runtime/core/error.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/flags.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kTokensOfData = 16;  // of the prompt where none is given

/// The ids of a line, between spaces, commas or tabs.
TokenIds ids_in(std::string_view line, const std::string& where) {
  constexpr std::string_view kBetween = " ,\t\r";
  TokenIds ids;
  while (true) {
    line.remove_prefix(std::min(line.find_first_not_of(kBetween), line.size()));
    if (line.empty()) return ids;
    std::uint32_t id = 0;
    const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), id);
    const std::size_t length = std::min(line.find_first_of(kBetween), line.size());
    if (error != std::errc{} || end != line.data() + length) {
      usage_error("{}: '{}' is no token id", where, printable(line.substr(0, length), 40));
    }
    ids.push_back(id);
    line.remove_prefix(length);
  }
}

}  // namespace

std::vector<TokenIds> prompts_of(const GenerateOptions& options) {
  if (!options.prompt.empty()) {
    TokenIds bytes;
    for (const char c : options.prompt) bytes.push_back(static_cast<unsigned char>(c));
    return {bytes};
  }
  if (options.prompts.empty()) return {};
  const MappedFile file = about("--prompts", [&] { return MappedFile(options.prompts); });
  std::istringstream lines{std::string(file.text())};
  std::vector<TokenIds> prompts;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    TokenIds ids = ids_in(line, fmt::format("--prompts: {}, line {}", options.prompts, ++number));
    if (!ids.empty()) prompts.push_back(std::move(ids));
  }
  if (prompts.empty()) usage_error("--prompts: {} has no prompt", options.prompts);
  return prompts;
}

std::int64_t longest_of(const std::vector<TokenIds>& prompts) {
  std::size_t longest = 0;
  for (const TokenIds& prompt : prompts) longest = std::max(longest, prompt.size());
  return static_cast<std::int64_t>(longest);
}

void set_lengths(RunFacts& facts, const GenerateOptions& options, const std::vector<TokenIds>& prompts) {
  const std::int64_t longest = prompts.empty() ? kTokensOfData : longest_of(prompts);
  const std::int64_t shortest = prompts.empty() ? 1 : longest;
  facts.longest_text = longest + options.max_tokens;
  facts.least_text = shortest + (options.auto_max_tokens ? 1 : options.max_tokens);
}

void check_prompts(const std::vector<TokenIds>& prompts, const GenerateOptions& options, std::int64_t vocabulary) {
  if (!options.prompt.empty() && vocabulary > kByteTokens) {
    usage_error(
        "--prompt: the model has {} tokens, which are not bytes. `launch/generate-text --tokenizer FOLDER --prompt "
        "TEXT -- ddptrain --generate ...` takes text; --prompts FILE takes token ids.",
        vocabulary);
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto bad = std::ranges::find_if(prompts[i], [&](std::uint32_t id) { return id >= vocabulary; });
    if (bad == prompts[i].end()) continue;
    const std::string which =
        options.prompt.empty() ? fmt::format("--prompts {}: prompt {}", options.prompts, i + 1) : "--prompt: it";
    usage_error("{} has token {}, and the model has the tokens 0 to {}", which, *bad, vocabulary - 1);
  }
}

std::vector<TokenIds> sampled_prompts(const std::vector<TokenIds>& prompts, const GenerateOptions& options,
                                      const Workload& workload, std::int64_t longest_text) {
  if (!prompts.empty()) return prompts;
  const std::int64_t room = options.auto_max_tokens ? longest_text / 2 : longest_text - options.max_tokens;
  return {workload.first_tokens(std::min(room, kTokensOfData))};
}

std::string hash_of(const std::vector<TokenIds>& prompts) {
  Hash128 hash;
  for (const TokenIds& prompt : prompts) hash.add(prompt.data(), prompt.size() * sizeof(prompt.front()));
  return hash.hex();
}

}  // namespace ddptrain
