#include "models/hugging_face/tokenizer_files.h"

#include <algorithm>
#include <array>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::array kVocabularies = {"tokenizer.json", "vocab.json", "tokenizer.model"};
constexpr std::array kOthers = {"merges.txt",        "tokenizer_config.json", "special_tokens_map.json",
                                "added_tokens.json", "chat_template.jinja",   "generation_config.json"};

fs::path folder_of(const fs::path& model) {
  std::error_code ignored;
  return fs::is_directory(model, ignored) ? model : model.parent_path();
}

}  // namespace

bool has_tokenizer(const fs::path& model) {
  return std::ranges::any_of(kVocabularies, [&](const char* name) {
    std::error_code ignored;
    return fs::exists(folder_of(model) / name, ignored);
  });
}

void copy_tokenizer_files(const fs::path& model, const fs::path& folder) {
  const auto copy = [&](const char* name) {
    const fs::path from = folder_of(model) / name;
    std::error_code error;
    if (!fs::is_regular_file(from, error) || fs::equivalent(from, folder / name, error)) return;
    fs::copy_file(from, folder / name, fs::copy_options::overwrite_existing, error);
    if (error) usage_error("{}: cannot be copied to {}: {}", from.string(), folder.string(), error.message());
  };
  std::ranges::for_each(kVocabularies, copy);
  std::ranges::for_each(kOthers, copy);
}

}  // namespace ddptrain
