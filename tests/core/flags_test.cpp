#include "runtime/core/flags.h"

#include <gtest/gtest.h>

#include "tests/support/says.h"

namespace ddptrain {
namespace {

/// Empty: the value took the text.
std::string advice(FlagValue value, std::string text) { return value.set(text); }

TEST(Flags, ANumberIsTakenWithinItsRangeAlone) {
  std::int64_t integer = 7;
  for (const char* bad : {"", "x", "3x", "1.5", "0x10", " 3"}) {
    EXPECT_EQ(advice(number(integer, kOneOrMore), bad), "an integer") << bad;
  }
  for (const char* bad : {"0", "-1", "99999999999999999999"}) {
    EXPECT_EQ(advice(number(integer, kOneOrMore), bad), "at least 1") << bad;
  }
  EXPECT_EQ(integer, 7);
  EXPECT_EQ(advice(number(integer, kOneOrMore), "12"), "");
  EXPECT_EQ(integer, 12);
}

TEST(Flags, AnIntegerThatItsVariableCannotHoldIsOutOfRange) {
  int small = 1;
  EXPECT_EQ(advice(number(small, {"1 to 1024", 1, 1024}), "4294967297"), "1 to 1024");
  EXPECT_EQ(small, 1);
}

TEST(Flags, BoundsOfRealNumbersAreThoseOfTheVariable) {
  float share = 0.5f;
  EXPECT_EQ(advice(number(share, kBelowOne), "0.999999999"), kBelowOne.words);  // 1 as a float
  EXPECT_EQ(advice(number(share, kBelowOne), "nan"), kBelowOne.words);
  EXPECT_EQ(advice(number(share, kBelowOne), "0.999"), "");
  float decay = 0.0f;
  for (const char* infinite : {"inf", "infinity", "1e39"}) {  // the last one as a float
    EXPECT_EQ(advice(number(decay, kZeroOrMore), infinite), "0 or more, not infinite") << infinite;
  }
  EXPECT_EQ(advice(number(decay, kZeroOrMore), "nan"), kZeroOrMore.words);
  double rate = 0.5;
  const Range positive = {"a number above 0", kLeastAboveZero};
  EXPECT_EQ(advice(number(rate, positive), "0"), positive.words);
  EXPECT_EQ(advice(number(rate, positive), "1e-300"), "");
}

TEST(Flags, ANumberHasOneTextHoweverItIsTyped) {
  float rate = 0.0f;
  Flag flag = {"--lr", number(rate)};
  for (const char* typed : {"1e-3", "0.0010", ".001"}) {
    flag.set(typed);
    EXPECT_EQ(flag.value.text, "0.001") << typed;
  }
}

TEST(Flags, AWordMayStandForANumber) {
  std::int64_t batch = 8;
  bool automatic = false;
  const FlagValue value = or_word("auto", automatic, number(batch, kOneOrMore));
  EXPECT_EQ(value.type, "INT|auto");
  EXPECT_EQ(advice(value, "auto"), "");
  EXPECT_TRUE(automatic);
  EXPECT_EQ(batch, 8);
  EXPECT_EQ(advice(value, "16"), "");
  EXPECT_FALSE(automatic);
  EXPECT_EQ(advice(value, "0"), "at least 1, or auto");
}

TEST(Flags, AChoiceKnowsItsNamesAndItsStart) {
  bool on = false;
  const FlagValue value = choice(on, {{"on", true}, {"off", false}, {"auto", true}});
  EXPECT_EQ(value.type, "on|off|auto");
  EXPECT_EQ(value.text, "off");
  EXPECT_EQ(advice(value, "auto"), "");
  EXPECT_TRUE(on);
  EXPECT_EQ(advice(value, "yes"), "one of on|off|auto");
}

TEST(Flags, AFlagIsFoundByItsName) {
  std::int64_t batch = 8;
  Flags flags = {{"-b,--batch", number(batch)}};
  EXPECT_EQ(find_flag(flags, "--batch"), flags.data());
  EXPECT_EQ(find_flag(flags, "xxbatch"), nullptr);
  EXPECT_EQ(find_flag(flags, "--bat"), nullptr);
  EXPECT_EQ(error_message([&] { flags.front().set("many"); }), "--batch many: give an integer");
}

}  // namespace
}  // namespace ddptrain
