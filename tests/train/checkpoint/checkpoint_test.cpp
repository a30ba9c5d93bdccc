#include "tests/train/checkpoint/checkpoint_rig.h"

#include <signal.h>
#include <sys/resource.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "runtime/core/hash.h"
#include "tests/support/says.h"

namespace ddptrain::tests {
namespace {

TEST(Checkpoint, ARunGoesOnWithTheSameBits) {
  const SharedFolder folder("exact");
  for (const OptimizerKind kind : {OptimizerKind::sgd, OptimizerKind::adamw}) {
    for (const Zero zero : kZeroStages) {
      for (const std::int64_t accumulation : {1, 3}) {
        const std::string which =
            fmt::format("{} zero {} accumulation {}", rule_of(kind).name, static_cast<int>(zero), accumulation);
        const TrainerOptions options = options_with(kind, zero, accumulation);
        Replica run(test_world(), options);
        run.trainer->run(3);
        const fs::path own = folder / which;
        ASSERT_EQ(write(run, own, 3).error, "") << which;
        const auto written = run.arrays();
        run.trainer->run(4);
        const MetricSums expected = run.trainer->metrics().training().at(0);

        Replica other(test_world(), options);
        other.trainer->run(1);
        const auto checkpoint = find_checkpoint(test_world(), own);
        ASSERT_TRUE(checkpoint) << which;
        EXPECT_EQ(checkpoint->manifest.progress.step, 3);
        other.resume(*checkpoint);
        EXPECT_EQ(other.model->times_restored(), 1) << which;
        EXPECT_EQ(other.arrays(), written) << which;
        other.trainer->run(4);
        EXPECT_EQ(other.arrays(), run.arrays()) << which;
        EXPECT_NE(other.arrays(), written) << which;
        const MetricSums sums = other.trainer->metrics().training().at(0);
        EXPECT_EQ(sums.loss, expected.loss) << which;
        EXPECT_EQ(sums.samples, expected.samples) << which;
      }
    }
  }
}

TEST(Checkpoint, ARunThatRoundsAtRandomGoesOnWithTheSameBits) {
  const SharedFolder folder("rounded");
  TrainerOptions options = options_with(OptimizerKind::adamw, Zero::state);
  options.bf16_moments = true;
  options.has_masters = false;
  Replica run(test_world(), options);
  run.trainer->run(3);
  ASSERT_EQ(write(run, folder, 3).error, "");
  run.trainer->run(4);
  Replica other(test_world(), options);
  other.resume(*find_checkpoint(test_world(), folder));
  other.trainer->run(4);
  EXPECT_EQ(other.arrays(), run.arrays());
}

/// Wherever the state was and is.
TEST(Checkpoint, ARunGoesOnWithItsStateOnTheHostOrOnTheDevice) {
  const SharedFolder folder("places");
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon, OptimizerKind::lamb}) {
    for (const bool on_host : {false, true}) {
      TrainerOptions options = options_with(kind, Zero::state);
      options.clip_norm = 0.5f;
      options.bf16_moments = on_host;
      options.state_on_host = on_host;
      Replica run(test_world(), options);
      run.trainer->run(3);
      const fs::path own = folder / fmt::format("{} {}", rule_of(kind).name, on_host);
      ASSERT_EQ(write(run, own, 3).error, "");
      run.trainer->run(4);
      options.state_on_host = !on_host;
      Replica other(test_world(), options);
      other.resume(*find_checkpoint(test_world(), own));
      other.trainer->run(4);
      EXPECT_EQ(other.arrays(), run.arrays()) << rule_of(kind).name;
    }
  }
}

/// Moments of bf16 become those of fp32 exactly, and never the other way.
TEST(Checkpoint, MomentsBecomeWiderAndNotNarrower) {
  TrainerOptions wide = options_with(OptimizerKind::adamw, Zero::state);
  TrainerOptions narrow = wide;
  narrow.bf16_moments = true;
  const SharedFolder narrow_folder("narrow"), wide_folder("wide");
  Replica from(test_world(), narrow);
  from.trainer->run(3);
  ASSERT_EQ(write(from, narrow_folder, 3).error, "");
  const auto checkpoint = find_checkpoint(test_world(), narrow_folder);
  const auto is_moment = [](const ArrayInfo& array) { return array.name.starts_with("slot_"); };
  EXPECT_EQ(std::ranges::find_if(checkpoint->manifest.arrays, is_moment)->dtype, "bf16");

  Replica to(test_world(), wide);
  to.resume(*checkpoint);
  const auto moments = from.arrays();
  for (const auto& [name, values] : to.arrays()) {
    const std::vector<char>& before = moments.at(name);
    if (!name.starts_with("slot_")) {
      EXPECT_EQ(values, before) << name;
      continue;
    }
    ASSERT_EQ(values.size(), 2 * before.size()) << name;
    for (std::size_t i = 0; i < before.size() / 2; ++i) {
      ASSERT_EQ(values[4 * i] | values[4 * i + 1], 0) << name;
      ASSERT_EQ(values[4 * i + 2], before[2 * i]) << name;
      ASSERT_EQ(values[4 * i + 3], before[2 * i + 1]) << name;
    }
  }
  ASSERT_EQ(write(to, wide_folder, 3).error, "");
  EXPECT_THROW(from.resume(*find_checkpoint(test_world(), wide_folder)), UsageError);
}

TEST(Checkpoint, WhatIsCopiedIsTheStateAtTheCallThoughTrainingGoesOn) {
  const SharedFolder folder("snapshot");
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(2);
  const auto expected = run.arrays();
  CheckpointOptions options;
  options.folder = folder.string();
  CheckpointWriter writer(options, identity(test_world()), *run.trainer, test_world());
  ASSERT_FALSE(writer.start({2, {}, {}, {}}));
  run.trainer->run(3);
  EXPECT_TRUE(writer.busy());
  EXPECT_THROW(writer.start({5, {}, {}, {}}), Error);
  ASSERT_EQ(writer.wait().value().error, "");
  EXPECT_FALSE(writer.busy());
  run.resume(*find_checkpoint(test_world(), folder));
  EXPECT_EQ(run.arrays(), expected);
}

/// Writes and reads on part of the ranks after the other, without training in between.
TEST(Checkpoint, ShardsAreCutAgainForOtherNumbersOfRanksAndStages) {
  const SharedFolder folder("ranks");
  const World& all = test_world();
  Replica first(all, options_with(OptimizerKind::adamw, Zero::weights));
  first.trainer->run(3);
  ASSERT_EQ(write(first, folder / "0", 3).error, "");
  const auto expected = CheckpointReader(*find_checkpoint(all, folder / "0")).parameters();
  const auto arrays = first.arrays();
  const std::string hash = first.trainer->state().parameter_hash();
  const float seen_by_rank_0 = first.model->seen().as<float>()[1];

  int number = 0;
  for (const int ranks : {all.size() / 2, 1, all.size()}) {
    if (ranks < 1) continue;
    const bool takes_part = all.rank() < ranks;
    const auto part = all.split(takes_part ? 0 : 1);
    if (takes_part) {
      const Zero stage = ranks == 1 ? Zero::nothing : ranks == all.size() ? Zero::state : Zero::gradients;
      TrainerOptions options = options_with(OptimizerKind::adamw, stage);
      options.bucket_bytes = 700 * (number + 2);  // buckets end elsewhere
      Replica run(*part, options);
      run.resume(*find_checkpoint(*part, folder / std::to_string(number)));
      EXPECT_EQ(run.trainer->state().parameter_hash(), hash) << ranks;
      if (all.rank() == 0) {
        EXPECT_EQ(run.model->seen().as<float>()[1], seen_by_rank_0);
      }
      ASSERT_EQ(write(run, folder / std::to_string(number + 1), 3).error, "") << ranks;
    }
    all.barrier();
    ++number;
  }
  const auto last = find_checkpoint(all, folder / std::to_string(number));
  const auto parameters = CheckpointReader(*last).parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (const auto& [name, tensor] : expected) EXPECT_EQ(parameters.at(name).second, tensor.second) << name;
  Replica again(all, options_with(OptimizerKind::adamw, Zero::weights));
  again.resume(*last);
  auto now = again.arrays();
  auto before = arrays;
  now.erase("buffer/seen");  // of each rank; went through one rank
  before.erase("buffer/seen");
  EXPECT_EQ(now, before);
}

TEST(Checkpoint, SumsOfAnotherNumberOfRanksGoToRankZero) {
  const RunProgress progress{7, {}, {}, {{0.25, 1, 4}, {0.5, 2, 4}, {1.0, 3, 4}}};
  EXPECT_EQ(restored_sums(progress, 1, 3).at(0).loss, 0.5);
  EXPECT_EQ(restored_sums(progress, 0, 2).at(0).loss, 1.75);
  EXPECT_EQ(restored_sums(progress, 0, 2).at(0).correct, 6u);
  EXPECT_EQ(restored_sums(progress, 1, 2).at(0).samples, 0u);
}

TEST(Checkpoint, SumsOfVirtualRanksGoToTheRanksThatTakeThem) {
  const RunProgress progress{7, {}, {}, {{0.25, 1, 4}, {0.5, 2, 4}, {1.0, 3, 4}, {2.0, 4, 4}}};
  const auto second = restored_sums(progress, 1, 2, 2);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].loss, 1.0);
  EXPECT_EQ(second[1].loss, 2.0);
  EXPECT_EQ(restored_sums(progress, 0, 1, 4).at(3).correct, 4u);
}

TEST(Checkpoint, RanksDivideWhatIsReplicated) {
  std::vector<float> values(1000);
  std::vector<char> bytes(13);
  const auto array = [](const char* name, Tensor values, Placement placement) {
    return StateArray{name, Split::none(values.shape), values.dtype, placement, {{0, values}}};
  };
  const std::vector<StateArray> arrays = {array("a", {bytes.data(), DType::u8, {13}}, Placement::replicated),
                                          array("b", {values.data(), DType::f32, {700}}, Placement::replicated),
                                          array("c", {values.data() + 700, DType::f32, {1}}, Placement::replicated),
                                          array("d", {values.data() + 701, DType::f32, {99}}, Placement::per_rank)};
  for (const int ranks : {1, 2, 3, 5, 900}) {
    std::size_t all = 0, most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::size_t mine = 0;
      for (const StateArray& part : arrays_to_write(arrays, rank, ranks)) {
        if (part.name == "d") {
          EXPECT_EQ(part.pieces.at(0).values.size(), 99);
          continue;
        }
        for (const StateArray::Piece& piece : part.pieces) mine += piece.values.bytes();
      }
      all += mine;
      most = std::max(most, mine);
    }
    EXPECT_EQ(all, 13u + 4 * 701) << ranks;
    EXPECT_LE(most, (13 + 4 * 701) / static_cast<std::size_t>(ranks) + 8) << ranks;
  }
}

/// A file of one rank with pieces of the array "a" [4, 6], whose values are their places in the array.
class PiecesOfParts : public testing::Test {
 protected:
  CheckpointReader reader_of(const std::vector<std::pair<std::string, std::vector<float>>>& pieces) {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, values] : pieces) {
      tensors.emplace_back(name, StoredTensor{StoredType::f32, {static_cast<std::int64_t>(values.size())}});
    }
    std::string bytes = safetensors_head(tensors, {});
    for (const auto& [name, values] : pieces) {
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    }
    fs::create_directories(folder_ / "c");
    const std::string file = fmt::format("rank-{:05}.safetensors", test_world().rank());
    std::ofstream(folder_ / "c" / file, std::ios::binary) << bytes;
    checkpoint_ = {folder_ / "c", {}};
    checkpoint_.manifest.arrays = {{"a", {4, 6}, "f32"}};
    checkpoint_.manifest.files = {{file, bytes.size(), ""}};
    return CheckpointReader(checkpoint_);
  }
  static std::vector<float> columns(int first, int count) {
    std::vector<float> values;
    for (int row = 0; row < 4; ++row) {
      for (int i = first; i < first + count; ++i) values.push_back(static_cast<float>(6 * row + i));
    }
    return values;
  }

  SharedFolder folder_{"parts"};
  Checkpoint checkpoint_;
};

TEST_F(PiecesOfParts, AnyStretchOfTheWholeIsReadFromThem) {
  const std::vector<float> right = columns(4, 2);
  const CheckpointReader reader = reader_of({{"a[0:16:0:4:6]", columns(0, 4)},
                                             {"a[0:3:4:2:6]", {right.begin(), right.begin() + 3}},
                                             {"a[3:8:4:2:6]", {right.begin() + 3, right.end()}}});
  for (std::int64_t begin = 0; begin < 24; ++begin) {
    for (std::int64_t count = 1; begin + count <= 24; ++count) {
      std::vector<float> found(static_cast<std::size_t>(count), -1.0f);
      reader.read("a", begin, count, 0, [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
        std::memcpy(found.data() + at, data, bytes);
      });
      for (std::int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(found[static_cast<std::size_t>(i)], static_cast<float>(begin + i)) << begin << ", " << count;
      }
    }
  }
}

TEST_F(PiecesOfParts, WhatLiesOutsideOfTheArrayIsRefused) {
  const std::vector<float> values(12);
  for (const char* name :
       {"a[13:25]", "a[0:12:0:3]", "a[0:12:16:3:6]", "a[0:12:0:0:6]", "a[0:12:0:3:2]", "a[0:12:25:12:12]",
        "a[0:12:0:1:3]", "a[-1:12]", "a[0:12:0:3:6", "a[0:12:0:3:6:7]", "a[0;12]", "a[]", "b[0:12]",
        "a[4611686018427387904:12:0:3:6]", "a[0:12:0:1:4611686018427387904]"}) {
    EXPECT_THROW(reader_of({{name, values}, {"a[0:12]", values}}), UsageError) << name;
  }
  EXPECT_THROW(reader_of({{"a[0:12:0:3:6]", values}}), UsageError) << "half of the array";
}

TEST(Checkpoint, AFullDiskIsAnErrorOnAllRanksAndLeavesTheOldOneIntact) {
  const SharedFolder folder("full");
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(1);
  ASSERT_EQ(write(run, folder, 1).error, "");
  run.trainer->run(1);
  const bool here = test_world().rank() == test_world().size() - 1;
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{500, before.rlim_max};
  if (here) setrlimit(RLIMIT_FSIZE, &small);
  const WrittenCheckpoint failed = write(run, folder, 2);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_CONTAINS(failed.error, fmt::format("rank {} (", test_world().size() - 1));
  EXPECT_CONTAINS(failed.error, "File too large");
  test_world().barrier();
  EXPECT_FALSE(fs::exists(checkpoint_path(folder, 2)));
  EXPECT_EQ(find_checkpoint(test_world(), folder)->manifest.progress.step, 1);
  EXPECT_EQ(write(run, folder, 2).error, "");
}

TEST(Checkpoint, AFolderThatCannotBeMadeIsAnError) {
  const SharedFolder folder("file_in_the_way");
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  if (test_world().rank() == 0) std::ofstream(checkpoint_path(folder, 2)) << "in the way";
  test_world().barrier();
  EXPECT_NE(write(run, folder, 2).error, "");
}

TEST(Checkpoint, ManifestsReadAsTheyWereWritten) {
  Manifest manifest;
  manifest.run = identity(test_world());
  manifest.run.mesh.replicas = 2;
  manifest.run.sizes = {{"layers", 1}};
  manifest.run.seed = 1ull << 62;
  manifest.run.other_tensor = true;
  manifest.progress = {
      12, {{1, 8, 0.1 + 0.2, 0.5, std::nan(""), 0.25, 1e5}}, {1.0 / 3.0, 2, 3}, {{std::nan(""), 5, 6}, {7.5, 8, 9}}};
  manifest.arrays = {{"weight/a", {2, 3}, "f32", Placement::sharded}};
  manifest.files = {{"rank-00000.safetensors", 10, "aa"}, {"rank-00001.safetensors", 20, "bb"}};
  manifest.written = "2026-01-01T00:00:00Z";
  const Manifest read = parse_manifest(to_json(manifest), "manifest");
  EXPECT_EQ(to_json(read), to_json(manifest));
  EXPECT_EQ(read.bytes(), 30u);
  std::string changed = to_json(manifest);
  changed.replace(changed.find("\"--lr\": \"0.1\""), 13, "\"--lr\": \"0.2\"");
  EXPECT_THROW(parse_manifest(changed, "manifest"), UsageError);
  manifest.progress.rank_sums.push_back({});
  EXPECT_THROW(parse_manifest(to_json(manifest), "manifest"), UsageError) << "3 sums of 2 ranks";
  manifest.progress.rank_sums.push_back({});
  EXPECT_EQ(parse_manifest(to_json(manifest), "manifest").progress.rank_sums.size(), 4u) << "two virtual ranks each";
  manifest.files.pop_back();
  EXPECT_THROW(parse_manifest(to_json(manifest), "manifest"), UsageError);
}

TEST(Checkpoint, HashesAreThoseOfXxhsum) {
  EXPECT_EQ(xxh3_128("", 0), "99aa06d3014798d86001c324468d497f");  // of the algorithm's specification
}

}  // namespace
}  // namespace ddptrain::tests
