#include "data/text/token_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/files/file_kind.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using namespace std::string_view_literals;

static_assert(std::endian::native == std::endian::little, "token files are mapped as they are");

/// Of llm.c and llmq.
constexpr std::size_t kHeaderBytes = 1024;
/// llm.c's magic numbers are dates of that year.
constexpr std::int32_t kFirstMagic = 20240101;
constexpr std::int32_t kLastMagic = 20241231;

/// llm.c's token files.
struct LlmcKind {
  std::int32_t magic;
  std::int32_t version;
  std::uint8_t token_bytes;
  std::int64_t vocabulary;
};
constexpr std::array kLlmcKinds = {LlmcKind{20240520, 1, 2, 50257},
                                   LlmcKind{20240801, 7, 4, 128256}};  // GPT-2, Llama 3

constexpr std::string_view kLlmqMagic = "BIN.TOK\n"sv;
constexpr std::int32_t kLlmqVersion = 2;

constexpr std::size_t kKindBytes = 512;
/// Bare tokens are looked at in three pieces of this size: begin, middle, end.
constexpr std::size_t kPieceBytes = 1 << 16;
/// Less than that says nothing about what it is.
constexpr std::size_t kFewestWords = 16;

std::string advice(int bits) {
  return fmt::format(
      "only ids of 16 or 32 bits can be read: numpy.fromfile(FILE, 'uint{}').astype('uint32').tofile(NEW)", bits);
}

/// The three pieces of a file.
std::vector<std::string_view> pieces_of(std::string_view text) {
  if (text.size() <= 3 * kPieceBytes) return {text};
  const std::size_t middle = text.size() / 2 / 8 * 8;
  const std::size_t last = (text.size() - kPieceBytes) / 8 * 8;
  return {text.substr(0, kPieceBytes), text.substr(middle, kPieceBytes), text.substr(last)};
}

/// Words of 16 bits as the upper halves of 32-bit ids may be: zero, or small, up to 3 (vocabularies up to 262,144) or
/// those of small negative numbers, which mark what is not trained.
struct WordCounts {
  std::size_t words = 0;
  std::size_t zero = 0;
  std::size_t small = 0;
  std::size_t large = 0;  ///< 256 or more, as lower halves of ids of such vocabularies often are.

  void add(std::uint16_t word) {
    ++words;
    zero += word == 0 ? 1 : 0;
    small += word <= 3 || word == 0xffff ? 1 : 0;
    large += word >= 256 ? 1 : 0;
  }
  WordCounts operator+(const WordCounts& other) const {
    return {words + other.words, zero + other.zero, small + other.small, large + other.large};
  }
};

bool nearly_all(std::size_t part, std::size_t whole) { return part * 100 >= whole * 99; }
bool a_tenth(std::size_t part, std::size_t whole) { return part * 10 >= whole; }

/// Counts of the pieces of a file.
struct Look {
  std::array<WordCounts, 4> at;          ///< By position of the word modulo 4.
  std::array<WordCounts, 2> swapped_at;  ///< By position modulo 2, of words whose two bytes change places.
  std::array<std::size_t, 256> low{};
  std::array<std::size_t, 256> high{};

  explicit Look(const std::vector<std::string_view>& pieces) {
    for (const std::string_view piece : pieces) {
      for (std::size_t i = 0; i + 1 < piece.size(); i += 2) {
        std::uint16_t word = 0;
        std::memcpy(&word, piece.data() + i, sizeof(word));
        at[i / 2 % 4].add(word);
        swapped_at[i / 2 % 2].add(static_cast<std::uint16_t>(word << 8 | word >> 8));
        ++low[word & 0xff];
        ++high[word >> 8];
      }
    }
  }

  std::size_t words() const { return (at[0] + at[1] + at[2] + at[3]).words; }
};

std::size_t distinct(const std::array<std::size_t, 256>& counts) {
  return static_cast<std::size_t>(std::count_if(counts.begin(), counts.end(), [](std::size_t n) { return n > 0; }));
}

/// Bytes of the upper half, of which text and small vocabularies have none.
bool has_upper(const std::array<std::size_t, 256>& counts) {
  return std::any_of(counts.begin() + 128, counts.end(), [](std::size_t n) { return n > 0; });
}

/// Whether `upper` are the upper halves of 32-bit ids with the lower halves `lower`. 16-bit ids of text have no such
/// difference between even and odd positions.
bool are_halves(const WordCounts& lower, const WordCounts& upper) {
  if (upper.zero == upper.words) return a_tenth(lower.words - lower.zero, lower.words);
  return nearly_all(upper.small, upper.words) && lower.small * 2 < lower.words && a_tenth(lower.large, lower.words);
}

/// Whether bare words are 32-bit ids. What fault_of_words() finds is none.
bool are_wide(const Look& look) { return are_halves(look.at[0] + look.at[2], look.at[1] + look.at[3]); }

/// Why bare words are neither 16-bit nor 32-bit tokens. Empty: they may be. A genuine file of a small vocabulary has
/// zero in every high byte.
std::string fault_of_words(const Look& look) {
  const WordCounts even = look.at[0] + look.at[2];
  const WordCounts odd = look.at[1] + look.at[3];
  if (even.zero + odd.zero == look.words()) return "it holds nothing but zeros (was it written to the end?)";
  const auto is_zero = [&](std::size_t i) { return look.at[i].zero == look.at[i].words; };
  const auto holds_ids = [&](std::size_t i) { return a_tenth(look.at[i].words - look.at[i].zero, look.at[i].words); };
  if (is_zero(2) && is_zero(3) && holds_ids(0) && nearly_all(look.at[1].small, look.at[1].words)) {
    return fmt::format("it looks like 64-bit token ids (three of four 16-bit words are 0); {}", advice(64));
  }
  if (are_wide(look)) return "";
  if (are_halves(look.swapped_at[1], look.swapped_at[0])) {
    return "it looks like big-endian ids of 32 or 64 bits: numpy.fromfile(FILE, '>u4').astype('<u4').tofile(NEW)";
  }
  if (look.low[0] == look.words() && distinct(look.high) >= 4) {
    return "it looks like big-endian 16-bit ids (all low bytes are 0): numpy.fromfile(FILE, '>u2').astype('<u2')"
           ".tofile(NEW)";
  }
  if (!has_upper(look.low) && !has_upper(look.high) && distinct(look.high) >= 8) {
    return "it looks like 8-bit ids (no byte is above 127): numpy.fromfile(FILE, 'uint8').astype('uint16')"
           ".tofile(NEW)";
  }
  return "";
}

/// The size of the ids of Megatron's data set, by the index beside its .bin file. None: there is no such index.
std::optional<int> megatron_bits(const fs::path& path) {
  constexpr std::string_view kMagic = "MMIDIDX\0\0"sv;
  constexpr std::size_t kTypeAt = 17;                                    // after 8 bytes of version
  constexpr std::array<int, 9> kBits = {0, 8, 8, 16, 32, 64, 0, 0, 16};  // 0: numbers that are no ids
  std::error_code ignored;
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (!fs::is_regular_file(index, ignored) || fs::file_size(index, ignored) <= kTypeAt) return std::nullopt;
  const MappedFile file(index);
  if (!file.text().starts_with(kMagic)) return std::nullopt;
  return file.data()[kTypeAt] < kBits.size() ? kBits[file.data()[kTypeAt]] : 0;
}

/// A file of nothing but ids.
TokenFile ids_of(const MappedFile& file, const std::string& name, std::uint8_t token_bytes) {
  if (file.size() % token_bytes != 0) {
    usage_error("{}: {} bytes are no multiple of {}: not a file of {}-bit tokens (text files: not named .bin)", name,
                file.size(), token_bytes, 8 * token_bytes);
  }
  return {{file.data(), static_cast<std::int64_t>(file.size() / token_bytes)}, token_bytes};
}

TokenFile bare_tokens(const MappedFile& file, const fs::path& path) {
  const std::string name = path.string();
  const std::string_view text = file.text();
  if (const std::string kind = file_kind(text.substr(0, kKindBytes)); !kind.empty()) {
    usage_error("{}: not a token file; it looks like {}", name, kind);
  }
  const std::optional<int> megatron = megatron_bits(path);
  if (megatron == 32) return ids_of(file, name, 4);
  if (megatron && megatron != 16) {
    const std::string kind = *megatron > 0 ? fmt::format("{}-bit ids", *megatron) : "numbers that are no ids";
    usage_error("{}: a data set of Megatron with {}, by the .idx beside it; {}", name, kind,
                advice(*megatron > 0 ? *megatron : 64));
  }
  const std::vector<std::string_view> pieces = pieces_of(text);
  if (text.size() >= 2 * kFewestWords && std::all_of(pieces.begin(), pieces.end(), is_text)) {
    usage_error("{}: not a token file{} (text is read from files that are not named .bin)", name, looks_like(text));
  }
  const Look look(pieces);
  if (look.words() < kFewestWords) return ids_of(file, name, 2);
  const std::string fault = fault_of_words(look);
  if (!fault.empty()) {
    usage_error("{}: not a file of 16-bit or 32-bit tokens: {}. (Tokens behind llm.c's header are taken as they are.)",
                name, fault);
  }
  return ids_of(file, name, are_wide(look) ? 4 : 2);
}

/// The tokens behind a header that promises `count` of them.
TokenFile promised_tokens(const MappedFile& file, const std::string& name, std::int32_t count, std::uint8_t token_bytes,
                          std::int64_t vocabulary) {
  if (file.size() < kHeaderBytes) usage_error("{}: truncated in its header", name);
  if (count <= 0) usage_error("{}: its header promises {} tokens", name, count);
  const std::size_t promised = kHeaderBytes + token_bytes * static_cast<std::size_t>(count);
  if (file.size() != promised) {
    usage_error("{}: {}: {} bytes, but its header promises {} tokens, {} bytes", name,
                file.size() < promised ? "truncated" : "damaged", file.size(), count, promised);
  }
  return {{file.data() + kHeaderBytes, count}, token_bytes, vocabulary};
}

/// The first numbers of a file from byte `begin` on; zeros if it ends.
template <std::size_t Count>
std::array<std::int32_t, Count> numbers_at(const MappedFile& file, std::size_t begin) {
  std::array<std::int32_t, Count> numbers{};
  if (file.size() > begin)
    std::memcpy(numbers.data(), file.data() + begin, std::min(file.size() - begin, sizeof(numbers)));
  return numbers;
}

TokenFile llmc_tokens(const MappedFile& file, const std::string& name) {
  const auto [magic, version, count] = numbers_at<3>(file, 0);
  for (const LlmcKind& kind : kLlmcKinds) {
    if (magic != kind.magic) continue;
    if (file.size() >= kHeaderBytes && version != kind.version) {
      usage_error("{}: a token file of llm.c of version {}; only version {} can be read", name, version, kind.version);
    }
    return promised_tokens(file, name, count, kind.token_bytes, kind.vocabulary);
  }
  usage_error("{}: a file of llm.c, but not of tokens: magic number {} in place of {} or {}", name, magic,
              kLlmcKinds[0].magic, kLlmcKinds[1].magic);
}

TokenFile llmq_tokens(const MappedFile& file, const std::string& name) {
  const auto [version, token_bytes, count, vocabulary, has_masks] = numbers_at<5>(file, kLlmqMagic.size());
  if (version != kLlmqVersion || token_bytes != 4) {
    usage_error(
        "{}: a token file of llmq of version {} with {} bytes per token; only version {} with 4 bytes can be read",
        name, version, token_bytes, kLlmqVersion);
  }
  if (has_masks != 0) {
    usage_error("{}: a token file of llmq with masks; write it without masks, because all tokens are trained on", name);
  }
  return promised_tokens(file, name, count, 4, std::max(vocabulary, 0));
}

}  // namespace

TokenFile token_file(const MappedFile& file, const fs::path& path) {
  const std::string name = path.string();
  if (file.text().starts_with(kLlmqMagic)) return llmq_tokens(file, name);
  const std::int32_t magic = numbers_at<1>(file, 0)[0];
  if (magic >= kFirstMagic && magic <= kLastMagic) return llmc_tokens(file, name);
  return bare_tokens(file, path);
}

void check_text(const MappedFile& file, const fs::path& path) {
  const std::string_view begin = file.text().substr(0, kKindBytes);
  const std::string pointer = pointer_kind(begin);
  if (!pointer.empty()) usage_error("{}: looks like {}", path.string(), pointer);
  if (std::memchr(file.data(), 0, std::min(file.size(), kPieceBytes)) == nullptr) return;
  usage_error("{}: not a text file: it holds bytes of value 0{}", path.string(),
              file_kind(begin).empty() ? " (token files are named .bin)" : looks_like(begin));
}

}  // namespace ddptrain
