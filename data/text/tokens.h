#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/files/mapped_file.h"
#include "runtime/core/hash.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_batch.h"
#include "runtime/train/dataset.h"

namespace ddptrain {

/// Consecutive tokens in host memory: a file, or a part of one.
struct TokenSegment {
  const void* tokens = nullptr;
  std::int64_t count = 0;
};

/// The training or the validation part of a text. A view of TokenData.
struct TokenPart {
  std::string name;              ///< For messages, such as "training part of tokens/".
  std::uint8_t token_bytes = 0;  ///< 1, 2 or 4, little-endian.
  std::vector<TokenSegment> segments;

  std::int64_t count() const;
  std::vector<std::uint32_t> first(std::int64_t most) const;  ///< The first tokens, at most `most`.
};

/// The vocabulary of a text whose tokens are its bytes.
inline constexpr std::int64_t kByteTokens = 256;

/// A text as tokens, and the memory that holds it.
struct TokenData {
  TokenPart train;
  TokenPart validation;
  std::int64_t vocabulary = 0;    ///< All tokens are below it.
  std::optional<double> entropy;  ///< Nats per token, the floor of the loss; known for synthetic text only.
  SharedHash hash;                ///< Hash of the tokens; this reader has added its share.
  std::string source;             ///< The name of --data.

  std::vector<MappedFile> files;
  std::vector<std::uint8_t> memory;

  bool are_bytes() const { return train.token_bytes == 1 && !entropy; }  ///< Its tokens are the bytes of a text.
};

/// The largest vocabulary. Tokens have up to 32 bits.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 24;

struct TokenOptions {
  /// Up to kMostTokens. 0: what the files say, or else 256 for bytes, 50,257 for token files and synthetic text.
  std::int64_t vocabulary = 0;
  double validation_fraction = 0.1;  ///< The end of the text, if no shard is for validation; in [0, 1).
  std::uint64_t seed = 1;            ///< Seed of synthetic text.
  int reader = 0;  ///< Index of this reader among the `readers` of this host. Each checks its share of the tokens.
  int readers = 1;
};

/// Reads what `data` names:
/// - a text file: its bytes are the tokens;
/// - a .bin file of tokens of 16 or 32 bits: of llm.c, llmq, or nanoGPT (nothing but ids); token_file.h says what is
///   refused;
/// - a folder: its .bin files or, without any, its .txt files; or a pattern such as "tokens/*.bin". Files are sorted by
///   name; those with the word val, valid or validation in their names are for validation. A .bin and a text file do
///   not go together;
/// - synthetic[:COUNT[:VOCABULARY]]: SyntheticTokens, by default 16,777,216 of options.vocabulary.
/// Files are mapped, not read, except that tokens are hashed and compared with the vocabulary, by all readers together.
/// UsageError, naming file or part, if one is missing, empty, truncated, of another kind, of odd size, of mixed
/// kinds, or holds a token that is not below the vocabulary.
TokenData load_tokens(const std::string& data, const TokenOptions& options);

/// The windows of `sequence` + 1 tokens in a part, in host memory. `segments` gets a view of each segment. The result
/// refers to `part` and `segments`. UsageError if no window fits, or if there are 2^32 or more.
TokenSource windows_of(const TokenPart& part, std::int64_t sequence, std::vector<TokenSegmentView>& segments);

/// A text as windows of one length.
class TokenDataset final : public Dataset {
 public:
  /// UsageError if a part has no window.
  TokenDataset(TokenData data, std::int64_t sequence);

  const TokenData& text() const { return data_; }
  std::int64_t sequence() const { return sequence_; }
  std::int64_t train_count() const override { return train_count_; }
  std::int64_t test_count() const override { return test_count_; }
  DataContent content() const override;

 private:
  TokenData data_;
  std::int64_t sequence_;
  std::int64_t train_count_;
  std::int64_t test_count_;
};

/// The tokens of a model. `memory` owns the memory behind the views, if nobody else does.
struct ResidentTokens {
  TokenSource train;
  TokenSource validation;
  std::vector<Buffer> memory = {};
};

/// Copies text of up to kResidentTokenBytes to the device. The device reads larger text from host memory over the bus,
/// a few kilobytes per step. The result refers to `data`, and the device outlives it. UsageError if the text is too
/// large to copy and the device cannot read host memory.
inline constexpr std::int64_t kResidentTokenBytes = std::int64_t{4} << 30;
ResidentTokens make_resident(const TokenDataset& data, Device& device);

}  // namespace ddptrain
