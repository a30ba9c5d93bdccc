#include "data/text/bpe_tokenizer.h"

#include <cstdlib>
#include <random>

#include "runtime/core/files/json.h"
#include "tests/data/idx_files.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;
namespace fs = std::filesystem;
using Tokens = std::vector<std::uint16_t>;

const fs::path kReference = DDPTRAIN_BPE_REFERENCE;  // made by make_bpe_expected.py

class BpeTokenizerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!built_with_pre_tokenizer()) GTEST_SKIP() << "a build without PCRE2";
  }
};

std::string text_of(const fs::path& path) {
  const Bytes bytes = read_all(path);
  return {bytes.begin(), bytes.end()};
}

void write_text(const fs::path& path, const std::string& text) { write_plain(path, Bytes(text.begin(), text.end())); }

void expect_encodings(const BpeTokenizer& tokenizer, const fs::path& expected) {
  std::ifstream file(expected);
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const auto json = nlohmann::json::parse(line);
    const auto text = json.at("text").get<std::string>();
    const auto tokens = json.at("ids").get<Tokens>();
    EXPECT_EQ(tokenizer.encode(text), tokens) << line;
    EXPECT_EQ(tokenizer.decode(tokens), text) << line;
  }
  EXPECT_GT(count, 80);
}

TEST_F(BpeTokenizerTest, EncodesAsHuggingFaceDoes) {
  const BpeTokenizer tokenizer(kReference);
  EXPECT_EQ(tokenizer.vocabulary(), 1257);
  EXPECT_EQ(tokenizer.end_of_text(), 1256);
  expect_encodings(tokenizer, kReference / "reduced.jsonl");
}

TEST_F(BpeTokenizerTest, EncodesAsHuggingFaceDoesWithAllOfGpt2) {
  const char* folder = std::getenv("DDPTRAIN_GPT2");
  if (folder == nullptr) GTEST_SKIP() << "$DDPTRAIN_GPT2 is no folder with GPT-2's vocab.json and merges.txt";
  const BpeTokenizer tokenizer(folder);
  EXPECT_EQ(tokenizer.vocabulary(), 50257);
  EXPECT_EQ(tokenizer.end_of_text(), 50256);
  EXPECT_EQ(tokenizer.encode("Hello world"), (Tokens{15496, 995}));
  EXPECT_EQ(tokenizer.encode("Hello, world!"), (Tokens{15496, 11, 995, 0}));
  expect_encodings(tokenizer, kReference / "full.jsonl");
}

TEST_F(BpeTokenizerTest, AnyBytesComeBack) {
  const BpeTokenizer tokenizer(kReference);
  std::vector<std::string> texts = {"\xFF",
                                    "a\xC3",
                                    "\xE2\x82 x",
                                    "\xED\xA0\x80",
                                    "\xF4\x90\x80\x80",
                                    "\xC0\xAF",
                                    "  \x80  b",
                                    std::string("\0\0 \0", 4)};
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string text(random() % 64, '\0');
    for (char& c : text) c = static_cast<char>(i % 2 == 0 ? random() : " a\xC3\xA4\xF0\x9F\x99\x82\n"[random() % 9]);
    texts.push_back(text);
  }
  for (const std::string& text : texts) EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  // What is valid around it is not disturbed.
  Tokens expected = tokenizer.encode("the result");
  expected.push_back(tokenizer.encode("\xFF").at(0));
  const Tokens rest = tokenizer.encode(" the result");
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(tokenizer.encode("the result\xFF the result"), expected);
}

TEST_F(BpeTokenizerTest, LongPiecesTakeNoQuadraticTime) {
  const BpeTokenizer tokenizer(kReference);
  for (const char* unit : {"in", " ", "\n", "\xE4\xB8\xAD", "!", "\xFF"}) {
    std::string text;
    while (text.size() < 300'000) text += unit;
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST_F(BpeTokenizerTest, UnknownTokensAreRefused) {
  const BpeTokenizer tokenizer(kReference);
  EXPECT_CONTAINS(error_message([&] { tokenizer.decode({5, 1257}); }), "token 1257");
}

class BpeFilesTest : public BpeTokenizerTest {
 protected:
  /// The message that these two files are refused with.
  std::string fault(const std::string& vocabulary, const std::string& merges) {
    write_text(folder_ / "vocab.json", vocabulary);
    write_text(folder_ / "merges.txt", merges);
    const std::string message = error_message([&] { BpeTokenizer tokenizer(folder_.path()); });
    EXPECT_CONTAINS(message, folder_.path().string());
    return message;
  }

  TempFolder folder_;
  std::string vocabulary_ = text_of(kReference / "vocab.json");
  std::string merges_ = text_of(kReference / "merges.txt");
};

TEST_F(BpeFilesTest, FaultsAreTold) {
  EXPECT_CONTAINS(error_message([&] { BpeTokenizer tokenizer(folder_.path()); }), "vocab.json: cannot be opened");
  write_text(folder_ / "vocab.json", vocabulary_);
  EXPECT_CONTAINS(error_message([&] { BpeTokenizer tokenizer(folder_.path()); }), "merges.txt: cannot be opened");
  EXPECT_CONTAINS(fault("", merges_), "empty");
  EXPECT_CONTAINS(fault("[1, 2]", merges_), "not a JSON object");
  EXPECT_CONTAINS(fault("{\"a\": 1", merges_), "damaged JSON");
  EXPECT_CONTAINS(fault(std::string(1'000'000, '['), merges_), "damaged JSON");
  EXPECT_CONTAINS(fault("{}", merges_), "no token for byte 0");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"b\": 1.5}", merges_), "'b' has no number from 0 to 1");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"b\": -1}", merges_), "'b' has no number");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"b\": 2}", merges_), "'b' has no number");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"b\": {}}", merges_), "'b' has no number");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"b\": 0}", merges_), "two tokens have the number 0");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"b c\": 1}", merges_), "'b c' is no token");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"\xE4\xB8\xAD\": 1}", merges_), "is no token");
  EXPECT_CONTAINS(fault("{\"a\": 0, \"\": 1}", merges_), "is no token");
  EXPECT_CONTAINS(fault(vocabulary_, "#version: 0.2\nt h\nth\n"), "line 3 is not a merge");
  EXPECT_CONTAINS(fault(vocabulary_, "t h e\n"), "line 1 is not a merge");
  EXPECT_CONTAINS(fault(vocabulary_, "z q\n"), "line 1 ('z q') does not go with");
  EXPECT_CONTAINS(fault(vocabulary_, "\xC4\x60 t\n"), "line 1 is not a merge");  // Ġ without the bit of a second byte
  EXPECT_CONTAINS(fault(vocabulary_, "\xC4\xA0 \xC4\xB1\xC4\xB1\n"), "line 1 ('?? ?");
  EXPECT_LT(fault(vocabulary_, std::string(5000, 'z') + " q\n").size(), 600u);
  std::string many = "{\"a\": 0";
  for (int i = 1; i <= 65536; ++i) many += ",\"x" + std::to_string(i) + "\":" + std::to_string(i);
  EXPECT_CONTAINS(fault(many + "}", merges_), "65537 tokens");
}

TEST_F(BpeFilesTest, WindowsLineEndsAreRead) {
  std::string merges;
  for (const char c : merges_) merges += c == '\n' ? std::string("\r\n") : std::string(1, c);
  write_text(folder_ / "vocab.json", vocabulary_);
  write_text(folder_ / "merges.txt", merges);
  expect_encodings(BpeTokenizer(folder_.path()), kReference / "reduced.jsonl");
}

std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  PreTokenizer().split(text, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST_F(BpeTokenizerTest, WhiteSpaceIsWhatUnicodeSaysItIs) {
  using Pieces = std::vector<std::string>;
  for (const char* space : {"\t", "\n", "\v", "\f", "\r", "\u0085", "\u00A0", "\u1680", "\u2000", "\u200A", "\u2028",
                            "\u2029", "\u202F", "\u205F", "\u3000"}) {
    EXPECT_EQ(pieces_of(std::string("x ") + space + "y"), (Pieces{"x", " ", space, "y"}));
    EXPECT_EQ(pieces_of(std::string("x ") + space), (Pieces{"x", std::string(" ") + space}));
  }
  for (const char* other : {"\x1C", "\x1F", "\u180E", "\u200B", "\u2060", "\uFEFF", "!"}) {
    EXPECT_EQ(pieces_of(std::string("x ") + other + "y"), (Pieces{"x", std::string(" ") + other, "y"}));
  }
}

TEST_F(BpeTokenizerTest, TextIsCutWhereGpt2CutsIt) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_of("I'll say:  it's 42.5\u00B2 \u00E9t\u00E9s!? "),
            (Pieces{"I", "'ll", " say", ":", " ", " it", "'s", " 42", ".", "5\u00B2", " \u00E9t\u00E9s", "!?", " "}));
  EXPECT_EQ(pieces_of("a\xFF\xFE b"), (Pieces{"a", "\xFF", "\xFE", " b"}));
  EXPECT_EQ(pieces_of(""), Pieces{});
}

TEST(PreTokenizer, ABuildWithoutPcre2SaysSo) {
  if (built_with_pre_tokenizer()) GTEST_SKIP() << "a build with PCRE2";
  EXPECT_CONTAINS(error_message([] { BpeTokenizer tokenizer(kReference); }), "libpcre2-dev");
}

}  // namespace
}  // namespace ddptrain
