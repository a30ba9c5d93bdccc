#include "runtime/core/text.h"

#include <gtest/gtest.h>

namespace ddptrain {
namespace {

TEST(Printable, ControlCharactersAndOtherBytesAreQuestionMarks) {
  EXPECT_EQ(printable("h.0.weight ~"), "h.0.weight ~");
  EXPECT_EQ(printable(std::string("a\x1b[2J\n\0b\x7f", 9)), "a?[2J??b?");
  EXPECT_EQ(printable("gr\xc3\xb6\xff"), "gr???");
}

TEST(Printable, LongTextsAreCut) {
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(printable(std::string(1000, 'x')).size(), 93u);
}

TEST(Printable, TextsKeepTheirLinesAndCharacters) {
  const std::string text = "Two\nlines\tof gr\xc3\xb6\xc3\x9f\x65, \xe2\x82\xac and \xf0\x9f\x99\x82";
  EXPECT_EQ(printable_text(text), text);
}

TEST(Printable, TextsLoseControlCharactersAndWhatIsNoUtf8) {
  EXPECT_EQ(printable_text(std::string("a\0b\x1b[2J\r\x7f", 9)), "a\\x00b\\x1b[2J\\x0d\\x7f");
  EXPECT_EQ(printable_text("\xc2\x9b"
                           "1m"),
            "\\xc2\\x9b1m");                                              // U+009B begins control sequences, too
  EXPECT_EQ(printable_text("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable_text("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable_text("\xe2\x82"), "\\xe2\\x82");                    // cut
  EXPECT_EQ(printable_text("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");  // beyond U+10FFFF
}

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(12, "micro-step"), "12 micro-steps");
}

}  // namespace
}  // namespace ddptrain
