#include "runtime/device/tuned_choices.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "runtime/core/error.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

const TunedFor kMachine = {{"GPU", "NVIDIA H200"}, {"driver", "580.1"}, {"cuBLAS", "13.1.0"}};
const TunedChoices::Map kChoices = {{"product: bf16 64 x 8 x 16", "00ff10"}, {"bias gradient: bf16 8", "epilogue"}};

std::string message_of(const std::string& text, const TunedFor& machine = kMachine) {
  return error_message([&] { parse_tuned(text, "cache/x.json", machine); });
}

std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(TunedChoices, FilesHoldThem) {
  EXPECT_EQ(parse_tuned(tuned_text(kMachine, kChoices), "x", kMachine), kChoices);
  EXPECT_EQ(parse_tuned(tuned_text(kMachine, {}), "x", kMachine), TunedChoices::Map{});
}

TEST(TunedChoices, FilesOfAnotherMachineAreRefused) {
  for (const auto& [name, value] : kMachine) {
    TunedFor other = kMachine;
    other[name] = value + "1";
    EXPECT_CONTAINS(message_of(tuned_text(other, kChoices)), "written for") << name;
  }
  EXPECT_CONTAINS(message_of(tuned_text({}, kChoices)), "written for");
}

TEST(TunedChoices, DamagedFilesAreRefused) {
  const std::string text = tuned_text(kMachine, kChoices);
  EXPECT_CONTAINS(message_of(changed(text, "00ff10", "00ff11")), "damaged");
  EXPECT_CONTAINS(message_of(changed(text, "64 x 8", "64 x 9")), "damaged");
  EXPECT_CONTAINS(message_of(changed(text, "\"version\": 1", "\"version\": 2")), "version");
  for (std::size_t end = 0; end + 1 < text.size(); ++end) {
    EXPECT_CONTAINS(message_of(text.substr(0, end)), "cache/x.json") << end;
  }
  EXPECT_NE(message_of("{}"), "");
  EXPECT_NE(message_of("[]"), "");
  EXPECT_NE(message_of(changed(text, "\"00ff10\"", "7")), "");
}

TEST(TunedChoices, BytesOfLibrariesAreText) {
  const std::array<std::uint8_t, 4> bytes = {0, 1, 0xab, 0xff};
  std::array<std::uint8_t, 4> read = {7, 7, 7, 7};
  const std::string choice = choice_of(bytes.data(), bytes.size());
  EXPECT_EQ(choice, "0001abff");
  for (const char* wrong : {"", "0001abf", "0001abff0", "0001abfg", "0001ab f", "0001ab-1", "0x01abff"}) {
    EXPECT_FALSE(read_choice(wrong, read.data(), read.size())) << wrong;
  }
  EXPECT_EQ(read[0], 7);  // untouched
  ASSERT_TRUE(read_choice(choice, read.data(), read.size()));
  EXPECT_EQ(read, bytes);
}

TEST(TunedChoices, AreKeptOnce) {
  TunedChoices choices;
  choices.restore({{"a", "1"}});
  EXPECT_EQ(*choices.find("a"), "1");
  EXPECT_EQ(choices.find("b"), nullptr);
  EXPECT_TRUE(choices.take_new().empty());
  EXPECT_EQ(choices.choose("b", "2"), "2");
  EXPECT_EQ(*choices.find("b"), "2");
  EXPECT_EQ(choices.take_new(), (TunedChoices::Map{{"b", "2"}}));
  EXPECT_TRUE(choices.take_new().empty());
}

TEST(TunedChoices, RefusedOnesAreForgotten) {
  TunedChoices choices;
  choices.restore({{"a", "1"}, {"b", "2"}});
  choices.refuse("a");
  EXPECT_EQ(choices.find("a"), nullptr);
  EXPECT_NE(choices.find("b"), nullptr);
  EXPECT_TRUE(choices.take_new().empty());
  EXPECT_EQ(choices.take_refused(), (std::set<std::string>{"a"}));
  EXPECT_TRUE(choices.take_refused().empty());
}

TEST(TunedChoices, SharedOnesAreMadeWhereRanksMeet) {
  TunedChoices choices;
  EXPECT_TRUE(choices.open());
  choices.share([](const std::string& mine) { return mine + " of rank 0"; });
  EXPECT_FALSE(choices.open());
  EXPECT_THROW(choices.choose("a", "1"), Error);
  {
    const TunedChoices::AllRanks together(choices);
    const TunedChoices::AllRanks inner(choices);
    EXPECT_TRUE(choices.open());
    EXPECT_EQ(choices.choose("a", "1"), "1 of rank 0");
  }
  EXPECT_FALSE(choices.open());
  EXPECT_EQ(*choices.find("a"), "1 of rank 0");
}

}  // namespace
}  // namespace ddptrain
