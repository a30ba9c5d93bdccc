#include <cstring>

#include "data/text/tokens.h"
#include "tests/fuzz/fuzz.h"

/// A file of tokens (.bin) and a text file of the same bytes: all tokens are below the vocabulary, and windows lie
/// within the text.

namespace ddptrain::fuzz {
namespace {

std::uint32_t token_at(const TokenSegment& segment, std::int64_t i, std::uint8_t token_bytes) {
  std::uint32_t token = 0;
  std::memcpy(&token, static_cast<const std::uint8_t*>(segment.tokens) + i * token_bytes, token_bytes);
  return token;
}

void check(const TokenData& data, std::int64_t file_bytes) {
  for (const TokenPart* part : {&data.train, &data.validation}) {
    require(part->token_bytes == data.train.token_bytes, "one kind of tokens");
    for (const TokenSegment& segment : part->segments) {
      for (std::int64_t i = 0; i < segment.count; ++i) {
        require(token_at(segment, i, part->token_bytes) < data.vocabulary, "tokens are below the vocabulary");
      }
    }
  }
  require((data.train.count() + data.validation.count()) * data.train.token_bytes <= file_bytes, "tokens of the file");
}

void load(const std::filesystem::path& path, std::int64_t vocabulary, std::int64_t file_bytes) {
  TokenOptions options;
  options.vocabulary = vocabulary;
  auto data = result_of(path, [&] { return load_tokens(path.string(), options); });
  if (!data) return;
  check(*data, file_bytes);
  const std::int64_t tokens = data->train.count() + data->validation.count();
  const auto set = result_of(path, [&] { return TokenDataset(std::move(*data), 4); });
  require(!set || (set->train_count() + set->test_count()) * 4 < tokens, "windows lie within the text");
}

}  // namespace
}  // namespace ddptrain::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  static const Folder folder;
  const std::string_view content = text_of(data, size);
  const auto bytes = static_cast<std::int64_t>(size);
  load(folder.write("tokens.bin", content), 0, bytes);
  load(folder.write("text.txt", content), 0, bytes);
  load(folder.write("text.txt", content), 128, bytes);
  return 0;
}
