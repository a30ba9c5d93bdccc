#include "runtime/outer/snapshot.h"

#include <gtest/gtest.h>

#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

const SnapshotHead kNewest = {"0a1b", 0xFFFFFFFFFFFFFFFFu, "1700000000000-3", 17, 4'000'000'000,
                              "1f",   R"({"fold": "x"})"};
const SnapshotHead kOlder = {"ffff", 1, "1600000000000-0", 9, 12, "2e", ""};

std::string with_checksum(const std::string& content) { return xxh3_128(content.data(), content.size()) + content; }

TEST(SnapshotTest, ListIsReadAsItWasWritten) {
  for (const std::vector<SnapshotHead>& heads : {std::vector<SnapshotHead>{}, {kNewest}, {kNewest, kOlder}}) {
    const auto parsed = parse_snapshot_list(write_snapshot_list(heads));
    ASSERT_TRUE(parsed);
    ASSERT_EQ(parsed->size(), heads.size());
    for (std::size_t i = 0; i < heads.size(); ++i) {
      const SnapshotHead& a = heads[i];
      const SnapshotHead& b = (*parsed)[i];
      EXPECT_EQ(std::tie(a.id, a.run, a.position, a.version, a.bytes, a.checksum, a.record),
                std::tie(b.id, b.run, b.position, b.version, b.bytes, b.checksum, b.record));
    }
  }
}

TEST(SnapshotTest, EveryChangedByteIsDamage) {
  const std::string whole = write_snapshot_list({kNewest, kOlder});
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(parse_snapshot_list(damaged)) << i;
    EXPECT_FALSE(parse_snapshot_list(whole.substr(0, i))) << i;
  }
}

TEST(SnapshotTest, ListsThatNobodyWritesAreDamage) {
  for (const char* content :
       {"", "[]", "{}", R"({"snapshots":1})", R"({"snapshots":[1]})", R"({"snapshots":[{}]})",
        R"({"snapshots":[{"id":"a b","run":1,"position":"1-0","version":1,"bytes":1,"checksum":"","record":""}]})",
        R"({"snapshots":[{"id":"","run":1,"position":"1-0","version":1,"bytes":1,"checksum":"","record":""}]})",
        R"({"snapshots":[{"id":"a","run":1,"position":"x","version":1,"bytes":1,"checksum":"","record":""}]})",
        R"({"snapshots":[{"id":"a","run":-1,"position":"1-0","version":1,"bytes":1,"checksum":"","record":""}]})",
        R"({"snapshots":[{"id":"a","run":1,"position":"1-0","version":1,"bytes":"1","checksum":"","record":""}]})"}) {
    EXPECT_FALSE(parse_snapshot_list(with_checksum(content))) << content;
  }
  EXPECT_FALSE(parse_snapshot_list(write_snapshot_list(std::vector<SnapshotHead>(100, kNewest))));
}

TEST(SnapshotTest, PositionsAreComparedAsNumbers) {
  EXPECT_TRUE(is_later("10-0", "9-5"));
  EXPECT_TRUE(is_later("9-10", "9-9"));
  EXPECT_TRUE(is_later("1-0", ""));
  EXPECT_FALSE(is_later("9-9", "9-9"));
  EXPECT_FALSE(is_later("", "0-1"));
  EXPECT_FALSE(is_later("", ""));
  EXPECT_FALSE(is_later("9-5", "10-0"));
}

}  // namespace
}  // namespace ddptrain
