#include "runtime/outer/record.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "runtime/core/error.h"
#include "tests/outer/outer_rig.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kValues = 130;

class RecordTest : public testing::Test {
 protected:
  const std::string path = testing::TempDir() + "/record";
  const OuterRule rule{2, OuterOptimizer::nesterov, 0.7f, 0.9f, 0};
  const OuterLayout layout{3, kValues, 1, OuterCodec::int8};
  const std::vector<OuterParameter> parameters = {{"b", {100}}, {"a", {3, 10}}};
  std::vector<float> weights = some_values(kValues, 1);
  std::vector<float> velocity = std::vector<float>(kValues, 0.0f);
  OuterFold fold{rule, layout, weights, velocity};

  void write() {
    OuterRecorder recorder(path, {rule, layout, parameters, fold.record()}, weights, velocity);
    for (std::uint64_t round = 0; round < 3; ++round) {
      for (const char* group : {"y", "x"}) {
        const std::string bytes =
            entry_of(layout, group, round, round, some_values(kValues, static_cast<unsigned char>(group[0])));
        recorder.add(bytes);
        fold.add(std::get<OuterEntry>(parse_entry(bytes, layout)));
      }
    }
  }
  std::string content() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void replace(const std::string& text) const { std::ofstream(path, std::ios::binary) << text; }
};

TEST_F(RecordTest, ReplayGivesTheSameBits) {
  write();
  const OuterReplay replay = replay_record(path);
  EXPECT_EQ(replay.hash, hash_of(parameters, weights));
  EXPECT_EQ(replay.version, 3u);
  EXPECT_EQ(replay.applied.at("x"), 3);
  EXPECT_TRUE(replay.skipped.empty());
}

TEST_F(RecordTest, AnEntryThatIsCutOffIsLeftOut) {
  write();
  const std::string whole = content();
  replace(whole.substr(0, whole.size() - 5));
  const OuterReplay replay = replay_record(path);
  EXPECT_EQ(replay.version, 2u);
  EXPECT_TRUE(replay.is_cut_off);
}

TEST_F(RecordTest, BytesThatDifferAreDamage) {
  write();
  EXPECT_FALSE(replay_record(path).is_cut_off);
  const std::string whole = content();
  for (std::size_t i = 0; i < whole.size(); i += 7) {  // some byte of each number of 8 bytes
    std::string damaged = whole;
    damaged[i] ^= static_cast<char>(1 << (i % 8));
    replace(damaged);
    EXPECT_THROW(replay_record(path), UsageError) << "byte " << i;
  }
}

TEST_F(RecordTest, OtherFilesAreRefused) {
  write();
  const std::string whole = content();
  const std::size_t head = whole.find('{');
  for (const std::string& text :
       {std::string("x"), whole.substr(0, head), whole.substr(0, head + 200), whole.substr(head),
        std::string(kOuterRecordStart) + "2\n{}\n", std::string(kOuterRecordStart) + "2\n[]\n",
        std::string(kOuterRecordStart) + "1\n" + whole.substr(head)}) {
    replace(text);
    EXPECT_THROW(replay_record(path), UsageError) << text.substr(0, 100);
  }
  std::string damaged = whole;
  damaged[whole.size() - 30] ^= 1;
  replace(damaged);
  EXPECT_THROW(replay_record(path), UsageError);
  EXPECT_THROW(replay_record(path + "-missing"), UsageError);
}

}  // namespace
}  // namespace ddptrain
