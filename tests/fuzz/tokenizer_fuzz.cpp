#include "data/text/bpe_tokenizer.h"
#include "tests/fuzz/fuzz.h"

/// vocab.json, merges.txt and a text, a byte of value 0 between them: a tokenizer that takes the files gives every text
/// back.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  using ddptrain::BpeTokenizer;
  if (!ddptrain::built_with_pre_tokenizer()) return 0;
  static const Folder folder;
  std::string_view rest = text_of(data, size);
  folder.write("vocab.json", take_part(rest));
  folder.write("merges.txt", take_part(rest));
  const auto tokenizer = result_of(folder.path(), [&] { return BpeTokenizer(folder.path()); });
  if (!tokenizer) return 0;
  const std::vector<BpeTokenizer::Token> tokens = tokenizer->encode(rest);
  for (const auto token : tokens) require(token < tokenizer->vocabulary(), "tokens are below the vocabulary");
  require(tokenizer->decode(tokens) == rest, "decoding gives back what was encoded");
  return 0;
}
