#include "data/text/bpe_tokenizer.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <tuple>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using Token = BpeTokenizer::Token;

/// The files write a byte as a character that can be seen: itself where Latin-1 has one, the others, in order, from
/// U+0100 on. All these characters take at most two bytes in UTF-8.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      const bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      byte_of_.at(visible ? static_cast<char32_t>(byte) : next++) = byte;
    }
  }

  /// The bytes that `text` stands for; nothing if it has a character that stands for none.
  std::optional<std::string> decode(std::string_view text) const {
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      std::size_t character = static_cast<std::uint8_t>(text[i]);
      if (character >= 0x80) {
        if (character < 0xC2 || character > 0xDF || ++i == text.size()) return {};
        const std::size_t second = static_cast<std::uint8_t>(text[i]);
        if ((second & 0xC0) != 0x80) return {};
        character = (character & 0x1F) << 6 | (second & 0x3F);
      }
      if (character >= byte_of_.size() || byte_of_[character] < 0) return {};
      bytes.push_back(static_cast<char>(byte_of_[character]));
    }
    return bytes;
  }

 private:
  std::array<int, 256 + 68> byte_of_ = [] {
    std::array<int, 256 + 68> none{};
    none.fill(-1);
    return none;
  }();
};

std::string_view text_of(const MappedFile& file) { return {reinterpret_cast<const char*>(file.data()), file.size()}; }

std::string_view next_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

}  // namespace

BpeTokenizer::BpeTokenizer(const fs::path& folder) {
  read_vocabulary(folder / "vocab.json");
  read_merges(folder / "merges.txt");
}

void BpeTokenizer::read_vocabulary(const fs::path& path) {
  const std::string name = path.string();
  const MappedFile file(path);
  const nlohmann::json json = parse_json_object(text_of(file), name);
  constexpr std::size_t kMost = 65536;
  if (json.size() > kMost) usage_error("{}: {} tokens; at most {} can be used", name, json.size(), kMost);
  const ByteAlphabet alphabet;
  bytes_.resize(json.size());
  for (const auto& [text, number] : json.items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= bytes_.size()) {
      usage_error("{}: token '{}' has no number from 0 to {}", name, printable(text), bytes_.size() - 1);
    }
    const auto token = number.get<std::size_t>();
    std::optional<std::string> bytes = alphabet.decode(text);
    if (!bytes || bytes->empty()) usage_error("{}: '{}' is no token of a byte-level vocabulary", name, printable(text));
    if (!bytes_[token].empty()) usage_error("{}: two tokens have the number {}", name, token);
    bytes_[token] = std::move(*bytes);
    if (bytes_[token] == kEndOfText) end_of_text_ = static_cast<Token>(token);
  }
  std::array<bool, 256> found{};
  for (std::size_t token = 0; token < bytes_.size(); ++token) {
    if (bytes_[token].size() != 1) continue;
    const auto byte = static_cast<std::uint8_t>(bytes_[token][0]);
    byte_tokens_[byte] = static_cast<Token>(token);
    found[byte] = true;
  }
  const auto missing = std::find(found.begin(), found.end(), false);
  if (missing != found.end()) usage_error("{}: no token for byte {}", name, missing - found.begin());
}

void BpeTokenizer::read_merges(const fs::path& path) {
  const MappedFile file(path);
  const ByteAlphabet alphabet;
  std::unordered_map<std::string_view, Token> token_of;
  for (std::size_t token = 0; token < bytes_.size(); ++token) token_of[bytes_[token]] = static_cast<Token>(token);
  std::string_view text = text_of(file);
  for (std::size_t line_number = 1; !text.empty(); ++line_number) {
    const std::string_view line = next_line(text);
    if (line.empty() || (line_number == 1 && line.substr(0, 8) == "#version")) continue;
    const std::size_t space = line.find(' ');
    const auto left = alphabet.decode(line.substr(0, space));
    const auto right = space == std::string_view::npos ? std::nullopt : alphabet.decode(line.substr(space + 1));
    if (!left || !right || left->empty() || right->empty()) {
      usage_error("{}: line {} is not a merge of two pieces", path.string(), line_number);
    }
    for (const std::string& part : {*left, *right, *left + *right}) {
      if (token_of.count(part) == 0) {
        usage_error("{}: line {} ('{}') does not go with the vocab.json beside it", path.string(), line_number,
                    printable(line));
      }
    }
    const Merge merge{static_cast<std::uint32_t>(line_number), token_of[*left + *right]};
    merges_.emplace(pair_of(token_of[*left], token_of[*right]), merge);
  }
}

std::vector<Token> BpeTokenizer::encode(std::string_view text) const {
  std::vector<Token> tokens;
  const std::string_view special = kEndOfText;
  while (!text.empty()) {
    const std::size_t end = end_of_text_ ? std::min(text.find(special), text.size()) : text.size();
    encode_ordinary(text.substr(0, end), tokens);
    text.remove_prefix(end);
    if (text.empty()) break;
    tokens.push_back(*end_of_text_);
    text.remove_prefix(special.size());
  }
  return tokens;
}

void BpeTokenizer::encode_ordinary(std::string_view text, std::vector<Token>& tokens) const {
  std::unordered_map<std::string_view, std::vector<Token>> known;
  pre_tokenizer_.split(text, [&](std::string_view piece) {
    auto found = known.find(piece);
    if (found == known.end()) found = known.emplace(piece, merge(piece)).first;
    tokens.insert(tokens.end(), found->second.begin(), found->second.end());
  });
}

/// Merges the pair of lowest rank, the leftmost first, until no neighbours have a merge. A queue in place of a search
/// keeps this from growing with the square of the length.
std::vector<Token> BpeTokenizer::merge(std::string_view piece) const {
  struct Part {
    Token token;
    std::size_t previous;
    std::size_t next;
    bool gone = false;
  };
  const std::size_t count = piece.size();
  std::vector<Part> parts(count);
  for (std::size_t i = 0; i < count; ++i) parts[i] = {byte_tokens_[static_cast<std::uint8_t>(piece[i])], i - 1, i + 1};

  using Candidate = std::tuple<std::uint32_t, std::size_t, std::uint32_t>;  // rank, place of the left part, pair
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto propose = [&](std::size_t left) {
    if (left >= count || parts[left].next >= count) return;
    const std::uint32_t pair = pair_of(parts[left].token, parts[parts[left].next].token);
    const auto found = merges_.find(pair);
    if (found != merges_.end()) queue.emplace(found->second.rank, left, pair);
  };
  for (std::size_t i = 0; i < count; ++i) propose(i);
  while (!queue.empty()) {
    const auto [rank, left, pair] = queue.top();
    queue.pop();
    Part& part = parts[left];
    if (part.gone || part.next >= count || pair_of(part.token, parts[part.next].token) != pair) continue;
    Part& eaten = parts[part.next];
    eaten.gone = true;
    part.token = merges_.at(pair).token;
    part.next = eaten.next;
    if (part.next < count) parts[part.next].previous = left;
    propose(part.previous);
    propose(left);
  }
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < count; i = parts[i].next) tokens.push_back(parts[i].token);
  return tokens;
}

std::string BpeTokenizer::decode(const std::vector<Token>& tokens) const {
  std::string text;
  for (const Token token : tokens) {
    if (token >= bytes_.size()) usage_error("token {} is not in the vocabulary of {}", token, bytes_.size());
    text += bytes_[token];
  }
  return text;
}

}  // namespace ddptrain
