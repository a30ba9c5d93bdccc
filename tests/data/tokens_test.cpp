#include "data/text/tokens.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "tests/data/idx_files.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;
using Tokens = std::vector<std::uint16_t>;

Bytes file_bytes(const Tokens& tokens) {
  const auto* first = reinterpret_cast<const Bytes::value_type*>(tokens.data());
  return {first, first + tokens.size() * sizeof(tokens[0])};
}

Bytes llmc_bytes(const Tokens& tokens, std::int32_t magic = 20240520, std::int32_t version = 1, int more = 0) {
  std::vector<std::int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<std::int32_t>(tokens.size()) + more;
  Bytes bytes(1024);
  std::memcpy(bytes.data(), header.data(), 1024);
  const Bytes rest = file_bytes(tokens);
  bytes.insert(bytes.end(), rest.begin(), rest.end());
  return bytes;
}

Bytes text_bytes(const std::string& text) { return {text.begin(), text.end()}; }

Tokens token_ramp(std::size_t count, std::size_t first = 0) {
  Tokens tokens(count);
  for (std::size_t i = 0; i < count; ++i) tokens[i] = static_cast<std::uint16_t>((first + i) % 50257);
  return tokens;
}

Tokens tokens_of(const TokenPart& part) {
  Tokens all;
  for (const TokenSegment& segment : part.segments) {
    for (std::int64_t i = 0; i < segment.count; ++i) {
      all.push_back(part.token_bytes == 1 ? static_cast<const std::uint8_t*>(segment.tokens)[i]
                                          : static_cast<const std::uint16_t*>(segment.tokens)[i]);
    }
  }
  return all;
}

using WideTokens = std::vector<std::uint32_t>;

WideTokens wide_tokens_of(const TokenPart& part) {
  EXPECT_EQ(part.token_bytes, 4);
  WideTokens all;
  for (const TokenSegment& segment : part.segments) {
    const auto* first = static_cast<const std::uint32_t*>(segment.tokens);
    all.insert(all.end(), first, first + segment.count);
  }
  return all;
}

TokenOptions whole() {
  TokenOptions options;
  options.validation_fraction = 0.0;
  return options;
}

std::string load_fault(const std::filesystem::path& path, const TokenOptions& options = {}) {
  const std::string message = error_message([&] { load_tokens(path.string(), options); });
  EXPECT_CONTAINS(message, path.string());
  return message;
}

class TokensTest : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(TokensTest, BytesOfATextFileAreItsTokens) {
  const std::string text = "First Citizen:\nh\xC3\xA4 \xF0\x9F\x99\x82!\n";
  write_plain(folder_ / "input.txt", text_bytes(text));
  const TokenData data = load_tokens((folder_ / "input.txt").string(), whole());
  EXPECT_EQ(data.vocabulary, 256);
  EXPECT_EQ(data.train.token_bytes, 1);
  const Bytes bytes = text_bytes(text);
  EXPECT_EQ(tokens_of(data.train), Tokens(bytes.begin(), bytes.end()));
  EXPECT_TRUE(data.validation.segments.empty());
  EXPECT_FALSE(data.entropy.has_value());
}

TEST_F(TokensTest, TheEndOfTheTextIsForValidation) {
  write_plain(folder_ / "a.bin", file_bytes(token_ramp(95)));
  write_plain(folder_ / "b.bin", file_bytes(token_ramp(5, 95)));
  for (const double fraction : {0.0, 0.04, 0.05, 0.1, 0.5, 0.96}) {
    TokenOptions options;
    options.validation_fraction = fraction;
    const TokenData data = load_tokens(folder_.path().string(), options);
    const auto cut = static_cast<std::size_t>(100 - std::floor(100 * fraction));
    EXPECT_EQ(tokens_of(data.train), token_ramp(cut)) << fraction;
    EXPECT_EQ(tokens_of(data.validation), token_ramp(100 - cut, cut)) << fraction;
  }
}

TEST_F(TokensTest, BothKindsOfTokenFilesAreTheSameText) {
  write_plain(folder_ / "llmc.bin", llmc_bytes(token_ramp(1000)));
  write_plain(folder_ / "nanogpt.bin", file_bytes(token_ramp(1000)));
  write_plain(folder_ / "one.bin", file_bytes({7}));
  for (const char* name : {"llmc.bin", "nanogpt.bin"}) {
    const TokenData data = load_tokens((folder_ / name).string(), whole());
    EXPECT_EQ(data.vocabulary, 50257);
    EXPECT_EQ(data.train.token_bytes, 2);
    EXPECT_EQ(tokens_of(data.train), token_ramp(1000)) << name;
  }
  EXPECT_EQ(tokens_of(load_tokens((folder_ / "one.bin").string(), whole()).train), Tokens{7});
}

TEST_F(TokensTest, NamesOfShardsTellTheirPart) {
  write_plain(folder_ / "text_train_000002.bin", llmc_bytes(token_ramp(10, 20)));
  write_plain(folder_ / "text_train_000001.bin", llmc_bytes(token_ramp(20)));
  write_plain(folder_ / "text_val_000000.bin", llmc_bytes(token_ramp(7, 500)));
  write_plain(folder_ / "medieval.bin", llmc_bytes(token_ramp(3, 900)));  // not the word
  write_plain(folder_ / "input.txt", text_bytes("not a shard"));
  Tokens expected = token_ramp(3, 900);
  for (const std::uint16_t token : token_ramp(30)) expected.push_back(token);
  for (const std::string& data : {folder_.path().string(), (folder_ / "*.bin").string()}) {
    const TokenData tokens = load_tokens(data, {});
    EXPECT_EQ(tokens_of(tokens.train), expected);
    EXPECT_EQ(tokens_of(tokens.validation), token_ramp(7, 500));
  }
  // Asked for by name, it is the text.
  EXPECT_EQ(tokens_of(load_tokens((folder_ / "text_val_000000.bin").string(), whole()).train), token_ramp(7, 500));
  EXPECT_EQ(tokens_of(load_tokens((folder_ / "text_train_*.bin").string(), whole()).train), token_ramp(30));
}

TEST_F(TokensTest, AFolderOfTextWorksToo) {
  write_plain(folder_ / "val.txt", text_bytes("xyz"));
  write_plain(folder_ / "train.txt", text_bytes("abc"));
  const TokenData data = load_tokens(folder_.path().string(), {});
  EXPECT_EQ(tokens_of(data.train), (Tokens{'a', 'b', 'c'}));
  EXPECT_EQ(tokens_of(data.validation), (Tokens{'x', 'y', 'z'}));
}

TEST_F(TokensTest, FaultsOfFilesAreTold) {
  const auto with = [&](const char* name, const Bytes& content) {
    write_plain(folder_ / name, content);
    return load_fault(folder_ / name);
  };
  EXPECT_CONTAINS(load_fault(folder_ / "nowhere.bin"), "no such file");
  EXPECT_CONTAINS(load_fault(folder_ / "x*.bin"), "no file matches");
  EXPECT_CONTAINS(load_fault(folder_.path()), "no .bin and no .txt");
  EXPECT_CONTAINS(with("empty.bin", {}), "empty");
  EXPECT_CONTAINS(with("empty.txt", {}), "empty");
  EXPECT_CONTAINS(with("odd.bin", {1, 2, 3}), "odd");
  EXPECT_CONTAINS(with("magic.bin", llmc_bytes(token_ramp(9), 20240802)), "20240802 in place of 20240520 or 20240801");
  EXPECT_CONTAINS(with("version.bin", llmc_bytes(token_ramp(9), 20240520, 2)), "version 2; only version 1");
  EXPECT_CONTAINS(with("wide.bin", llmc_bytes(token_ramp(9), 20240801, 1)), "version 1; only version 7");
  EXPECT_CONTAINS(with("wide.bin", llmc_bytes(token_ramp(9), 20240801, 7)), "truncated");
  EXPECT_CONTAINS(with("negative.bin", llmc_bytes(token_ramp(9), 20240520, 1, -20)), "promises -11 tokens");
  EXPECT_CONTAINS(with("none.bin", llmc_bytes({})), "promises 0 tokens");
  EXPECT_CONTAINS(with("short.bin", llmc_bytes(token_ramp(9), 20240520, 1, 1)), "truncated");
  EXPECT_CONTAINS(with("huge.bin", llmc_bytes(token_ramp(9), 20240520, 1, 2'000'000'000)), "truncated");
  EXPECT_CONTAINS(with("long.bin", llmc_bytes(token_ramp(9), 20240520, 1, -1)), "damaged");
  EXPECT_CONTAINS(with("binary.txt", {'a', 0, 'b'}), "not a text file");
}

/// The ids as T, one after the other.
template <class T>
Bytes ids_as(const Tokens& ids, T added = 0) {
  std::vector<T> values(ids.begin(), ids.end());
  for (T& value : values) value = static_cast<T>(value + added);
  const auto* first = reinterpret_cast<const std::uint8_t*>(values.data());
  return {first, first + values.size() * sizeof(T)};
}

Bytes bytes_swapped(Bytes bytes, std::size_t size) {
  for (std::size_t i = 0; i + size <= bytes.size(); i += size) {
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(i), bytes.begin() + static_cast<std::ptrdiff_t>(i + size));
  }
  return bytes;
}

/// Ids below `vocabulary`, small ones more often, as those of text are.
Tokens text_ids(std::size_t count, double vocabulary, std::uint64_t seed = 1) {
  Tokens ids(count);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (std::uint16_t& id : ids) id = static_cast<std::uint16_t>(std::pow(vocabulary, uniform(random)) - 1.0);
  return ids;
}

Bytes joined(const std::string& head, const Bytes& rest) {
  Bytes all(head.begin(), head.end());
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

constexpr double kVocabularies[] = {4, 65, 97, 256, 300, 1000, 4096, 32000, 50257};

TEST_F(TokensTest, GenuineTokensOfAnyVocabularyAreRead) {
  for (const double vocabulary : kVocabularies) {
    for (const std::size_t count : {1, 7, 16, 40, 1000, 200000}) {
      for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
        if (count > 1000 && seed > 1) continue;
        const Tokens ids = text_ids(count, vocabulary, seed);
        if (std::count(ids.begin(), ids.end(), 0) == static_cast<std::ptrdiff_t>(count)) continue;
        write_plain(folder_ / "ids.bin", file_bytes(ids));
        EXPECT_EQ(tokens_of(load_tokens((folder_ / "ids.bin").string(), whole()).train), ids) << vocabulary;
      }
    }
  }
  // Letters with a space between them: "M K V\n", with 0 and 1 for the line feed and the space.
  Tokens spaced = text_ids(30000, 25);
  for (std::size_t i = 0; i < spaced.size(); ++i) spaced[i] = i % 2 == 1 ? (i % 60 == 59 ? 0 : 1) : spaced[i] + 2;
  write_plain(folder_ / "ids.bin", file_bytes(spaced));
  EXPECT_EQ(tokens_of(load_tokens((folder_ / "ids.bin").string(), whole()).train), spaced);
  Tokens padded = text_ids(3000, 50257);
  padded.resize(500000, 0);  // an array that was not filled to its end
  write_plain(folder_ / "ids.bin", file_bytes(padded));
  EXPECT_EQ(tokens_of(load_tokens((folder_ / "ids.bin").string(), whole()).train), padded);
  // First tokens that other files begin with: "1f 8b" and "80 02" alone are tokens.
  for (const std::uint16_t first : {0x8b1f, 0x0280, 0x0380, 0x0480, 0x0580, 0x5a42}) {
    Tokens ids = text_ids(1000, 50257);
    ids[0] = first;
    write_plain(folder_ / "ids.bin", file_bytes(ids));
    EXPECT_EQ(tokens_of(load_tokens((folder_ / "ids.bin").string(), whole()).train), ids) << first;
  }
}

TEST_F(TokensTest, IdsOf32BitsAreReadAndOtherSizesRefused) {
  const auto fault = [&](const Bytes& content) {
    write_plain(folder_ / "ids.bin", content);
    return load_fault(folder_ / "ids.bin");
  };
  for (const double vocabulary : kVocabularies) {
    for (const std::size_t count : {20, 1000, 100000}) {
      if (count > 1000 && vocabulary < 50257) continue;
      const Tokens ids = text_ids(count, vocabulary);
      write_plain(folder_ / "ids.bin", ids_as<std::uint32_t>(ids));
      const TokenData wide = load_tokens((folder_ / "ids.bin").string(), whole());
      EXPECT_EQ(wide_tokens_of(wide.train), WideTokens(ids.begin(), ids.end())) << vocabulary << ' ' << count;
      EXPECT_CONTAINS(fault(ids_as<std::uint64_t>(ids)), "looks like 64-bit token ids") << vocabulary << ' ' << count;
      EXPECT_CONTAINS(fault(bytes_swapped(ids_as<std::uint32_t>(ids), 4)), "big-endian ids") << vocabulary;
      EXPECT_CONTAINS(fault(bytes_swapped(ids_as<std::uint64_t>(ids), 8)), "big-endian ids") << vocabulary;
      if (count > 20 && vocabulary > 4 && vocabulary <= 256) {
        EXPECT_CONTAINS(fault(bytes_swapped(file_bytes(ids), 2)), "big-endian 16-bit ids") << vocabulary;
      }
      if (count > 20 && vocabulary > 4 && vocabulary < 128) {
        EXPECT_CONTAINS(fault(ids_as<std::uint8_t>(ids)), "looks like 8-bit ids") << vocabulary;
      }
    }
  }
  // Vocabularies beyond 65,536, of which the upper halves are 0 to 3, and marks of what is not trained.
  for (const std::uint32_t more : {65536u, 100000u, 190000u}) {
    WideTokens ids;
    for (const std::uint16_t id : text_ids(5000, 50257)) ids.push_back(id + more);
    write_plain(folder_ / "ids.bin", ids_as<std::uint32_t>(text_ids(5000, 50257), more));
    TokenOptions options = whole();
    EXPECT_CONTAINS(load_fault(folder_ / "ids.bin", options), "is not below the vocabulary of 50257") << more;
    options.vocabulary = 300000;
    EXPECT_EQ(wide_tokens_of(load_tokens((folder_ / "ids.bin").string(), options).train), ids) << more;
    EXPECT_CONTAINS(fault(ids_as<std::uint64_t>(text_ids(5000, 50257), more)), "looks like 64-bit token ids") << more;
  }
  Bytes marked = ids_as<std::uint32_t>(text_ids(5000, 50257));
  std::fill(marked.begin() + 400, marked.begin() + 404, 0xff);
  EXPECT_CONTAINS(fault(marked), "token 4294967295 at position 100 is not below the vocabulary");
  marked.pop_back();
  EXPECT_CONTAINS(fault(marked), "no multiple of 4: not a file of 32-bit tokens");
  EXPECT_CONTAINS(fault(Bytes(4000)), "nothing but zeros");
}

TEST_F(TokensTest, OtherFilesNamedBinAreNamed) {
  const auto fault = [&](const Bytes& content) {
    write_plain(folder_ / "x.bin", content);
    return load_fault(folder_ / "x.bin");
  };
  const Bytes ids = file_bytes(text_ids(3000, 50257));
  const std::vector<std::pair<std::string, const char*>> heads = {
      {std::string("\x93NUMPY\x01\0", 8), "NumPy array"},
      {std::string("PK\x03\x04\0\0", 6), "zip archive"},
      {std::string("\x1f\x8b\x08\0", 4), "gzip"},
      {"BZh91AY&SY", "bzip2"},
      {std::string("\xfd\x37zXZ\0", 6), "xz data"},
      {std::string("\x28\xb5\x2f\xfd", 4), "Zstandard"},
      {"PAR1", "Parquet"},
      {std::string("ARROW1\0\0", 8), "Arrow file"},
      {std::string("\xff\xff\xff\xff\x10\0\0\0", 8), "Arrow stream"},
      {std::string("MMIDIDX\0\0\1\0", 11), "index of a Megatron data set"},
      {std::string("BIN.TOK\0\2\0\0\0", 12), "llmq"},
      {std::string("\x38\0\0\0\0\0\0\0{\"a\":{", 14), "safetensors file"},
      {std::string("\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 ", 10), "PyTorch checkpoint"},
      {"<!DOCTYPE html>\n<html>", "web page"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n", "git lfs pull"}};
  for (const auto& [head, name] : heads) EXPECT_CONTAINS(fault(joined(head, ids)), name);
  const std::string latin =
      "Gr\xfc\xdf"
      "e aus einem alten Text mit wenigen Umlauten, sonst sind alle Zeichen ASCII.\n";
  const std::string russian = "\xd0\x9f\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82, \xd0\xbc\xd0\xb8\xd1\x80! ";
  for (const std::string& line :
       {std::string("First Citizen:\nBefore we proceed any further, hear me speak.\n"),
        std::string("{\"error\": \"Repository not found\", \"code\": 404}\n"), latin, russian}) {
    for (const int times : {3, 10001}) {
      std::string text;
      for (int i = 0; i < times; ++i) text += line;
      EXPECT_CONTAINS(fault(text_bytes(text)), "it looks like text that begins with");
    }
  }
}

TEST_F(TokensTest, WideTokensBehindHeadersSayTheirVocabulary) {
  const WideTokens ids = {0, 128255, 65536, 7, 151000};
  const auto behind = [&](const std::string& magic, const std::vector<std::int32_t>& numbers) {
    Bytes bytes(1024);
    std::memcpy(bytes.data(), magic.data(), magic.size());
    std::memcpy(bytes.data() + magic.size(), numbers.data(), numbers.size() * sizeof(numbers[0]));
    const auto* first = reinterpret_cast<const std::uint8_t*>(ids.data());
    bytes.insert(bytes.end(), first, first + ids.size() * sizeof(ids[0]));
    write_plain(folder_ / "ids.bin", bytes);
    return (folder_ / "ids.bin").string();
  };
  const TokenData llmq = load_tokens(behind("BIN.TOK\n", {2, 4, 5, 151936, 0}), whole());
  EXPECT_EQ(wide_tokens_of(llmq.train), ids);
  EXPECT_EQ(llmq.vocabulary, 151936);
  TokenOptions options = whole();
  options.vocabulary = 152000;
  EXPECT_EQ(load_tokens((folder_ / "ids.bin").string(), options).vocabulary, 152000);
  EXPECT_EQ(wide_tokens_of(load_tokens(behind("", {20240801, 7, 5}), options).train), ids);
  EXPECT_CONTAINS(load_fault(folder_ / "ids.bin"), "token 151000 at position 4 is not below the vocabulary of 128256");
  for (const auto& [numbers, fault] : {std::pair(std::vector<std::int32_t>{2, 4, 5, 151936, 1}, "with masks"),
                                       {{1, 4, 5, 151936, 0}, "of version 1 with 4 bytes per token"},
                                       {{2, 2, 5, 151936, 0}, "of version 2 with 2 bytes per token"},
                                       {{2, 4, 6, 151936, 0}, "truncated"},
                                       {{2, 4, 0, 151936, 0}, "promises 0 tokens"},
                                       {{2, 4, 5, 1 << 25, 0}, "a vocabulary of 33554432"}}) {
    EXPECT_CONTAINS(load_fault(behind("BIN.TOK\n", numbers)), fault);
  }
  write_plain(folder_ / "short.bin", text_bytes("BIN.TOK\n"));
  EXPECT_CONTAINS(load_fault(folder_ / "short.bin"), "version 0");
  behind("BIN.TOK\n", {2, 4, 5, 151936, 0});
  std::filesystem::remove(folder_ / "short.bin");
  write_plain(folder_ / "more.bin", file_bytes(token_ramp(30)));
  EXPECT_CONTAINS(load_fault(folder_.path()), "one holds 32-bit tokens, the other 16-bit tokens");
}

TEST_F(TokensTest, OtherFilesInPlaceOfTextAreNamed) {
  const auto fault = [&](const std::string& content) {
    write_plain(folder_ / "x.txt", text_bytes(content));
    return load_fault(folder_ / "x.txt");
  };
  EXPECT_CONTAINS(fault("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"), "git lfs pull");
  EXPECT_CONTAINS(fault(std::string("PAR1\x15\0\x15", 7)), "Parquet");
  EXPECT_CONTAINS(fault(std::string("\xff\xfeH\0a\0", 6)), "iconv");
  // A page that was asked for is text.
  write_plain(folder_ / "page.txt", text_bytes("<html><body>text</body></html>"));
  EXPECT_EQ(load_tokens((folder_ / "page.txt").string(), whole()).train.count(), 30);
}

TEST_F(TokensTest, MegatronsIndexTellsTheSizeOfIds) {
  const auto index = [&](char type) {
    write_plain(folder_ / "x.idx", text_bytes(std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0", 17) + type + "rest"));
  };
  const Tokens ids = text_ids(3000, 50257);
  write_plain(folder_ / "x.bin", file_bytes(ids));
  index(8);
  EXPECT_EQ(tokens_of(load_tokens((folder_ / "x.bin").string(), whole()).train), ids);
  index(5);
  EXPECT_CONTAINS(load_fault(folder_ / "x.bin"), "Megatron with 64-bit ids");
  index(7);
  EXPECT_CONTAINS(load_fault(folder_ / "x.bin"), "Megatron with numbers that are no ids, by the .idx beside it");
  index(4);
  write_plain(folder_ / "x.bin", ids_as<std::uint32_t>(ids));
  EXPECT_EQ(wide_tokens_of(load_tokens((folder_ / "x.bin").string(), whole()).train),
            WideTokens(ids.begin(), ids.end()));
}

TEST_F(TokensTest, HiddenFilesOfAFolderAreLeftOut) {
  write_plain(folder_ / "train.bin", file_bytes(token_ramp(30)));
  write_plain(folder_ / "._train.bin", Bytes{0, 5, 22, 7, 0, 2, 0, 0});
  EXPECT_EQ(tokens_of(load_tokens(folder_.path().string(), whole()).train), token_ramp(30));
}

TEST_F(TokensTest, KindsDoNotMix) {
  write_plain(folder_ / "part.bin", file_bytes(token_ramp(10)));
  write_plain(folder_ / "part.txt", text_bytes("text"));
  EXPECT_CONTAINS(load_fault(folder_ / "part*"), "do not go together");
  write_plain(folder_ / "val1.bin", file_bytes(token_ramp(10)));
  write_plain(folder_ / "val2.bin", file_bytes(token_ramp(10)));
  EXPECT_CONTAINS(load_fault(folder_ / "val*.bin"), "all its files are for validation");
}

TEST_F(TokensTest, TokensBeyondTheVocabularyAreFoundByTheReaderThatLooksThere) {
  Tokens tokens = token_ramp(300000);
  tokens[250000] = 50257;
  write_plain(folder_ / "text.bin", file_bytes(tokens));
  TokenOptions options;
  EXPECT_CONTAINS(load_fault(folder_ / "text.bin"), "token 50257 at position 250000");
  options.vocabulary = 50258;
  EXPECT_EQ(load_tokens((folder_ / "text.bin").string(), options).vocabulary, 50258);
  options.vocabulary = 0;
  options.readers = 3;
  for (const int reader : {1, 2}) {
    options.reader = reader;
    load_tokens((folder_ / "text.bin").string(), options);
  }
  options.reader = 0;
  EXPECT_CONTAINS(load_fault(folder_ / "text.bin", options), "50257");
  write_plain(folder_ / "text.txt", text_bytes("abcz"));
  options = {};
  options.vocabulary = 'z';
  EXPECT_CONTAINS(load_fault(folder_ / "text.txt", options), "token 122 at position 3");
  options.vocabulary = 'z' + 1;
  EXPECT_EQ(load_tokens((folder_ / "text.txt").string(), options).vocabulary, 'z' + 1);
}

/// What the readers of a host find together.
SharedHash::Value hash_of(const std::filesystem::path& path, int readers) {
  SharedHash::Value all{};
  for (int reader = 0; reader < readers; ++reader) {
    TokenOptions options;
    options.reader = reader;
    options.readers = readers;
    all = SharedHash::combined(all, load_tokens(path.string(), options).hash.value());
  }
  return all;
}

TEST_F(TokensTest, ReadersOfAHostHashAllOfIt) {
  Tokens tokens = token_ramp(200000);
  write_plain(folder_ / "0.bin", file_bytes(tokens));
  write_plain(folder_ / "1.bin", file_bytes(token_ramp(70000)));
  const auto hash = hash_of(folder_.path(), 1);
  for (const int readers : {2, 3, 8}) EXPECT_EQ(hash_of(folder_.path(), readers), hash) << readers;
  for (const std::size_t at : {std::size_t{0}, std::size_t{131071}, tokens.size() - 1}) {
    Tokens changed = tokens;
    changed[at] ^= 1;
    write_plain(folder_ / "0.bin", file_bytes(changed));
    for (const int readers : {1, 2, 3}) EXPECT_NE(hash_of(folder_.path(), readers), hash) << at;
  }
}

TEST_F(TokensTest, SyntheticTextKnowsItsEntropy) {
  const TokenData data = load_tokens("synthetic:1000:20", {});
  EXPECT_EQ(data.vocabulary, 20);
  EXPECT_EQ(data.train.token_bytes, 1);
  EXPECT_EQ(data.train.count(), 900);
  EXPECT_EQ(data.validation.count(), 100);
  EXPECT_NEAR(data.entropy.value(), 1.2130, 1e-4);
  TokenOptions options;
  options.vocabulary = 20000;
  EXPECT_EQ(load_tokens("synthetic:1000", options).train.token_bytes, 2);
  EXPECT_EQ(load_tokens("synthetic:1000:20", options).vocabulary, 20000);
  options.vocabulary = 10;
  EXPECT_CONTAINS(error_message([&] { load_tokens("synthetic:1000:20", options); }), "vocabulary of 10");
  for (const char* bad :
       {"synthetic:", "synthetic:x", "synthetic:0", "synthetic:-5", "synthetic:10:", "synthetic:10:0",
        "synthetic:10:16777217", "synthetic:10:5:6", "synthetic:99999999999999999999", "synthetic:1e3"}) {
    EXPECT_CONTAINS(error_message([&] { load_tokens(bad, {}); }), bad);
  }
}

/// Segments of these sizes, numbered through.
struct Text {
  explicit Text(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) total += size;
    tokens = token_ramp(total);
    std::size_t first = 0;
    for (const std::size_t size : sizes) {
      part.segments.push_back({tokens.data() + first, static_cast<std::int64_t>(size)});
      first += size;
    }
  }
  std::size_t total = 0;
  Tokens tokens;
  TokenPart part{"text", 2, {}};
};

TokenSource windows_of(const TokenPart& part, std::int64_t sequence) {
  static std::vector<TokenSegmentView> segments;
  return ddptrain::windows_of(part, sequence, segments);
}

TEST(TokenWindows, CoverTheirSegmentsWithoutCrossing) {
  const std::int64_t sequence = 4;
  const std::vector<std::size_t> sizes = {13, 3, 4, 5, 1, 12, 2};  // windows: 3, 0, 0, 1, 0, 2, 0
  const Text text(sizes);
  const TokenSource source = windows_of(text.part, sequence);
  ASSERT_EQ(source.window_count, 6u);
  const std::vector<std::uint32_t> starts = {0, 4, 8, 20, 26, 30};
  for (std::uint32_t w = 0; w < 6; ++w) {
    for (std::uint32_t i = 0; i <= sequence; ++i) EXPECT_EQ(source.token(w, i), starts[w] + i) << w << ", " << i;
  }
}

TEST(TokenWindows, ReadBytesAndWordsAlike) {
  const Bytes bytes = {250, 251, 252, 253, 254, 255};
  const Tokens words = {250, 251, 252, 253, 254, 255};
  for (const TokenPart& part :
       {TokenPart{"bytes", 1, {{bytes.data(), 6}}}, TokenPart{"words", 2, {{words.data(), 6}}}}) {
    const TokenSource source = windows_of(part, 2);
    ASSERT_EQ(source.window_count, 2u);
    for (std::uint32_t w = 0; w < 2; ++w) {
      for (std::uint32_t i = 0; i <= 2; ++i) EXPECT_EQ(source.token(w, i), 250 + 2 * w + i) << part.name;
    }
  }
}

TEST(TokenWindows, TextsThatAreTooShortOrTooLongAreRefused) {
  const Text text({4, 4});
  EXPECT_CONTAINS(error_message([&] { windows_of(text.part, 4); }), "8 tokens in 2 pieces are too few");
  EXPECT_CONTAINS(error_message([&] { windows_of({"validation part of x", 2, {}}, 4); }), "validation part of x");
  EXPECT_EQ(windows_of(text.part, 3).window_count, 2u);
  const TokenPart endless{"endless", 1, {{nullptr, std::int64_t{1} << 32}, {nullptr, 2}}};  // not read
  EXPECT_CONTAINS(error_message([&] { windows_of(endless, 1); }), "more than 4294967295 windows");
}

/// Beyond 2^32 bytes into a segment.
TEST(TokenWindows, OffsetsDoNotOverflow) {
  const std::int64_t count = (std::int64_t{1} << 32) + 1;
  const auto* base = reinterpret_cast<const std::uint8_t*>(std::uintptr_t{1} << 40);  // not read
  const TokenSource source = windows_of({"large", 2, {{base, count}}}, 1024);
  ASSERT_EQ(source.window_count, std::uint32_t{1} << 22);
  const auto* last = static_cast<const std::uint8_t*>(source.window(source.window_count - 1).tokens);
  EXPECT_EQ(last - base, 2 * ((std::int64_t{1} << 32) - 1024));
}

TEST(SyntheticTokens, OfLargeVocabulariesAreReadWith32Bits) {
  const TokenData data = load_tokens("synthetic:2000:100000", {});
  ASSERT_EQ(data.train.token_bytes, 4);
  EXPECT_EQ(data.vocabulary, 100000);
  std::vector<TokenSegmentView> segments;
  const TokenSource source = windows_of(data.train, 10, segments);
  std::uint32_t largest = 0;
  for (std::uint32_t window = 0; window < source.window_count; ++window) {
    for (std::uint32_t position = 0; position <= 10; ++position) {
      const std::uint32_t token = source.token(window, position);
      EXPECT_EQ(token, static_cast<const std::uint32_t*>(data.train.segments.front().tokens)[window * 10 + position]);
      largest = std::max(largest, token);
    }
  }
  EXPECT_GT(largest, 65536u);
  EXPECT_LT(largest, 100000u);
  TokenOptions options;
  options.vocabulary = 70000;
  EXPECT_CONTAINS(error_message([&] { load_tokens("synthetic:2000:100000", options); }), "vocabulary of 70000");
}

}  // namespace
}  // namespace ddptrain
