#include "runtime/core/text.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"
#include "tests/support/says.h"

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

TEST(WithoutControls, NothingReachesTheTerminalButText) {
  EXPECT_EQ(without_controls("a table\n\tof gr\xc3\xb6\xc3\x9f\x65n \xe2\x82\xac \xf0\x9f\x98\x80"),
            "a table\n\tof gr\xc3\xb6\xc3\x9f\x65n \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(without_controls("\x1b[2J\r\b\x7f"), "?[2J???");
  EXPECT_EQ(without_controls("\xc2\x9b"
                             "2J \x9b"
                             "2J"),
            "?2J ?2J");  // the control characters of 8 bits
  EXPECT_EQ(without_controls("\xff\xc3"), "??");
}

TEST(OneLine, ANameDoesNotSplitAMessage) { EXPECT_EQ(one_line("a\nb\t\x1b\xc3\xb6"), "a?b??\xc3\xb6"); }

/// Texts among the arguments are names; a table is given as Lines.
TEST(Messages, AreOnOneLineUnlessTheyHaveATable) {
  const std::string name = "a\nb";
  EXPECT_EQ(error_message([&] { usage_error("{}: {} of {}, {}", name, name.c_str(), 2, std::string_view(name)); }),
            "a?b: a?b of 2, a?b");
  EXPECT_EQ(error_message([&] { usage_error("{}:\n{}", name, Lines{"1\n2\n"}); }), "a?b:\n1\n2\n");
}

TEST(Counted, OneIsSingular) {
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(12, "micro-step"), "12 micro-steps");
}

}  // namespace
}  // namespace ddptrain
