#include "data/text/tokens.h"

#include <glob.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <regex>
#include <utility>

#include "data/text/synthetic_tokens.h"
#include "data/text/token_file.h"
#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kGpt2Vocabulary = 50257;
constexpr std::int64_t kSyntheticTokens = std::int64_t{1} << 24;
constexpr std::int64_t kMostSyntheticTokens = std::int64_t{1} << 33;

/// One file's tokens, or a text made in memory.
struct Shard {
  std::string name;
  TokenSegment segment;
  bool validation = false;
};

bool is_token_file(const fs::path& path) { return path.extension() == ".bin"; }

bool is_for_validation(const fs::path& path) {
  static const std::regex word("(^|[^a-z])val(id|idation)?([^a-z]|$)", std::regex::icase);
  return std::regex_search(path.filename().string(), word);
}

std::vector<fs::path> files_with(const fs::path& folder, const char* extension) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    std::error_code ignored;
    const bool hidden = entry.path().filename().string().starts_with(".");  // as shells do: macOS leaves "._train.bin"
    if (!hidden && entry.is_regular_file(ignored) && entry.path().extension() == extension) {
      paths.push_back(entry.path());
    }
  }
  if (error) usage_error("{}: the folder cannot be read: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<fs::path> shards_in(const fs::path& folder) {
  std::vector<fs::path> paths = files_with(folder, ".bin");
  if (paths.empty()) paths = files_with(folder, ".txt");
  if (paths.empty()) usage_error("{}: the folder holds no .bin and no .txt files", folder.string());
  return paths;
}

std::vector<fs::path> shards_matching(const std::string& pattern) {
  glob_t found{};
  const int code = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + (code == 0 ? found.gl_pathc : 0));
  globfree(&found);
  if (paths.empty()) usage_error("{}: no file matches this pattern", pattern);
  return paths;
}

std::vector<fs::path> find_shards(const std::string& data) {
  std::error_code ignored;
  if (fs::is_directory(data, ignored)) return shards_in(data);
  if (fs::exists(data, ignored)) return {data};
  if (data.find_first_of("*?[") != std::string::npos) return shards_matching(data);
  usage_error("{}: there is no such file or folder", data);
}

template <class T>
void check_tokens(const Shard& shard, const void* piece, std::size_t bytes, std::int64_t vocabulary) {
  if (vocabulary > std::numeric_limits<T>::max()) return;
  const auto limit = static_cast<T>(vocabulary);
  const T* begin = static_cast<const T*>(piece);
  const T* end = begin + bytes / sizeof(T);
  T largest = 0;
  for (const T* token = begin; token != end; ++token) largest = std::max(largest, *token);
  if (largest < limit) return;
  const T* bad = std::find_if(begin, end, [&](T token) { return token >= limit; });
  usage_error("{}: token {} at position {} is not below the vocabulary of {}: {}", shard.name, *bad,
              bad - static_cast<const T*>(shard.segment.tokens), vocabulary,
              sizeof(T) > 1 ? fmt::format("give a larger vocabulary, if the file holds {}-bit tokens and nothing else",
                                          8 * sizeof(T))
                            : "give a larger vocabulary");
}

/// Cuts the shards' last tokens off, `count` in all, as a part of their own.
std::vector<TokenSegment> cut_end(std::vector<TokenSegment>& segments, std::int64_t count, std::uint8_t token_bytes) {
  std::vector<TokenSegment> end;
  while (count > 0) {
    TokenSegment& last = segments.back();
    const std::int64_t cut = std::min(count, last.count);
    last.count -= cut;
    end.push_back({static_cast<const std::uint8_t*>(last.tokens) + last.count * token_bytes, cut});
    count -= cut;
    if (last.count == 0) segments.pop_back();
  }
  std::reverse(end.begin(), end.end());
  return end;
}

void split(TokenData& data, const std::string& name, const std::vector<Shard>& shards, const TokenOptions& options) {
  const bool named =
      shards.size() > 1 && std::any_of(shards.begin(), shards.end(), [](auto& s) { return s.validation; });
  data.train.name = fmt::format("training part of {}", name);
  data.validation.name = fmt::format("validation part of {}", name);
  data.validation.token_bytes = data.train.token_bytes;
  for (const Shard& shard : shards) {
    (named && shard.validation ? data.validation : data.train).segments.push_back(shard.segment);
  }
  if (data.train.segments.empty()) usage_error("{}: all its files are for validation, by their names", name);
  if (named) return;
  const auto count =
      static_cast<std::int64_t>(std::floor(static_cast<double>(data.train.count()) * options.validation_fraction));
  data.validation.segments = cut_end(data.train.segments, count, data.train.token_bytes);
}

/// Hashes this reader's share of the tokens and compares it with the vocabulary.
void look_at_tokens(TokenData& data, const std::vector<Shard>& shards, const TokenOptions& options) {
  const std::size_t size = data.train.token_bytes;
  data.hash = SharedHash(options.reader, options.readers);
  for (const Shard& shard : shards) {
    data.hash.add(shard.segment.tokens, static_cast<std::size_t>(shard.segment.count) * size,
                  [&](const void* piece, std::size_t bytes) {
                    const auto check = size == 1   ? check_tokens<std::uint8_t>
                                       : size == 2 ? check_tokens<std::uint16_t>
                                                   : check_tokens<std::uint32_t>;
                    check(shard, piece, bytes, data.vocabulary);
                  });
  }
}

/// Its bytes.
TokenFile text_as_tokens(const MappedFile& file) {
  return {{file.data(), static_cast<std::int64_t>(file.size())}, 1, 256};
}

TokenData map_files(const std::string& name, const std::vector<fs::path>& paths, const TokenOptions& options,
                    std::vector<Shard>& shards) {
  const bool tokens = is_token_file(paths.front());
  TokenData data;
  std::int64_t vocabulary = 0;
  for (const fs::path& path : paths) {
    if (is_token_file(path) != tokens) {
      usage_error("{}: {} and {} do not go together: one holds tokens (.bin), the other text", name,
                  paths.front().string(), path.string());
    }
    const MappedFile& file = data.files.emplace_back(path);
    if (!tokens) check_text(file, path);
    const TokenFile found = tokens ? token_file(file, path) : text_as_tokens(file);
    if (!shards.empty() && found.token_bytes != data.train.token_bytes) {
      usage_error("{}: {} and {} do not go together: one holds {}-bit tokens, the other {}-bit tokens", name,
                  paths.front().string(), path.string(), 8 * data.train.token_bytes, 8 * found.token_bytes);
    }
    data.train.token_bytes = found.token_bytes;
    vocabulary = std::max(vocabulary, found.vocabulary);
    shards.push_back({path.string(), found.tokens, is_for_validation(path)});
  }
  const std::int64_t usual = vocabulary > 0 ? vocabulary : kGpt2Vocabulary;
  data.vocabulary = options.vocabulary > 0 ? options.vocabulary : usual;
  if (data.vocabulary > kMostTokens) usage_error("{}: a vocabulary of {}: at most {} fit", name, usual, kMostTokens);
  return data;
}

std::int64_t synthetic_number(const std::string& data, std::string_view text, std::int64_t most) {
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc{} || end != text.data() + text.size() || value < 1 || value > most) {
    usage_error("{}: give synthetic:COUNT:VOCABULARY, up to {} tokens of a vocabulary up to {}", data,
                kMostSyntheticTokens, kMostTokens);
  }
  return value;
}

/// `numbers`: what follows "synthetic".
TokenData synthetic_text(const std::string& data, std::string_view numbers, const TokenOptions& options,
                         std::vector<Shard>& shards) {
  SyntheticTokens text{kSyntheticTokens, options.vocabulary > 0 ? options.vocabulary : kGpt2Vocabulary, options.seed};
  if (!numbers.empty()) {
    numbers.remove_prefix(1);
    const std::size_t colon = numbers.find(':');
    text.count = synthetic_number(data, numbers.substr(0, colon), kMostSyntheticTokens);
    if (colon != std::string_view::npos)
      text.vocabulary = synthetic_number(data, numbers.substr(colon + 1), kMostTokens);
  }
  TokenData result;
  result.train.token_bytes = text.token_bytes();
  result.vocabulary = options.vocabulary > 0 ? options.vocabulary : text.vocabulary;
  result.entropy = text.entropy();
  const std::uint64_t bytes = static_cast<std::uint64_t>(text.count) * text.token_bytes();
  require_host_memory(counted(text.count, "synthetic token"), bytes, options.readers);
  result.memory = text.generate();
  shards = {{data, {result.memory.data(), text.count}, false}};
  return result;
}

}  // namespace

std::int64_t TokenPart::count() const {
  std::int64_t total = 0;
  for (const TokenSegment& segment : segments) total += segment.count;
  return total;
}

std::vector<std::uint32_t> TokenPart::first(std::int64_t most) const {
  std::vector<std::uint32_t> ids;
  for (const TokenSegment& segment : segments) {
    const auto* bytes = static_cast<const std::uint8_t*>(segment.tokens);
    for (std::int64_t i = 0; i < segment.count && std::ssize(ids) < most; ++i, bytes += token_bytes) {
      std::uint32_t id = 0;
      std::memcpy(&id, bytes, token_bytes);  // little-endian, as this machine
      ids.push_back(id);
    }
  }
  return ids;
}

TokenData load_tokens(const std::string& data, const TokenOptions& options) {
  const std::string synthetic = "synthetic";
  const bool is_synthetic = data == synthetic || data.starts_with(synthetic + ":");
  std::vector<Shard> shards;
  TokenData result = is_synthetic ? synthetic_text(data, data.substr(synthetic.size()), options, shards)
                                  : map_files(data, find_shards(data), options, shards);
  look_at_tokens(result, shards, options);
  split(result, data, shards, options);
  result.source = data;
  return result;
}

TokenSource windows_of(const TokenPart& part, std::int64_t sequence, std::vector<TokenSegmentView>& segments) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  std::int64_t windows = 0;
  segments.clear();
  for (const TokenSegment& segment : part.segments) {
    segments.push_back({segment.tokens, static_cast<std::uint32_t>(windows)});
    windows += (segment.count - 1) / sequence;
    if (windows > kMost) {
      usage_error("{}: more than {} windows of sequence length {}: use fewer shards or longer sequences", part.name,
                  kMost, sequence);
    }
  }
  if (windows == 0) {
    usage_error("{}: {} in {} are too few: one window of sequence length {} takes {} in a piece", part.name,
                counted(part.count(), "token"), counted(std::ssize(part.segments), "piece"), sequence, sequence + 1);
  }
  return {segments.data(), static_cast<std::uint32_t>(segments.size()), static_cast<std::uint32_t>(windows),
          static_cast<std::uint32_t>(sequence), part.token_bytes};
}

TokenDataset::TokenDataset(TokenData data, std::int64_t sequence) : data_(std::move(data)), sequence_(sequence) {
  std::vector<TokenSegmentView> segments;
  train_count_ = windows_of(data_.train, sequence, segments).window_count;
  test_count_ = windows_of(data_.validation, sequence, segments).window_count;
}

DataContent TokenDataset::content() const {
  const std::int64_t train = data_.train.count();
  const std::int64_t validation = data_.validation.count();
  return {fmt::format("{} tokens", train + validation), data_.hash,
          fmt::format("{} training and {} validation tokens from {}", train, validation, data_.source)};
}

}  // namespace ddptrain
