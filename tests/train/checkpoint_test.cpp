#include "runtime/train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "data/text/tokens.h"
#include "models/gpt/gpt.h"
#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/run/step_pace.h"
#include "tests/support/says.h"
#include "tests/train/model_around.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSequence = 8;

const TokenDataset& data() {
  static const TokenDataset tokens(load_tokens("synthetic:1000:16", {}), kSequence);
  return tokens;
}

std::unique_ptr<Model> tiny_gpt(Device& device, std::int64_t batch, std::int64_t feed_forward) {
  GptOptions options;
  options.shape = {1, 8, 2, feed_forward, kSequence, 16};
  options.max_batch = batch;
  options.dropout = 0.2f;
  return make_gpt(device, options, make_resident(data(), device));
}

/// A GPT with a buffer of which each rank has its own: the samples it has seen, which change the gradient.
class Counting final : public tests::ModelAround {
 public:
  using ModelAround::ModelAround;

  std::vector<BufferSpec> buffers() const override { return {{"seen", {3}, DType::f32, 0.5f}}; }
  void bind(const ModelTensors& tensors) override {
    ModelAround::bind(tensors);
    seen_ = tensors.buffers.at(0);
  }
  void begin(const MicroBatch& batch) override {
    MicroBatch raised = batch;
    if (batch.training) seen_.as<float>()[1] += static_cast<float>(batch.slice.count * (1 + test_world().rank()));
    raised.gradient_scale *= 1.0f + 0.01f * seen_.as<float>()[1];
    ModelAround::begin(raised);
  }
  Tensor seen() const { return seen_; }

 private:
  Tensor seen_;
};

/// A replica on each rank of `world`, which may be a part of the job.
struct Replica {
  const World& world;
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> communicator;
  Counting* model = nullptr;
  std::unique_ptr<Trainer> trainer;

  Replica(const World& world, TrainerOptions options, std::int64_t feed_forward = 9) : world(world) {
    device = make_cpu_device({});
    communicator = make_communicator(world, *device, {});
    options.batch = 12 / world.size() / options.grad_accum;
    auto counting = std::make_unique<Counting>(tiny_gpt(*device, options.batch, feed_forward));
    model = counting.get();
    trainer = std::make_unique<Trainer>(options, std::move(counting), data(), world, *device, *communicator);
  }

  std::map<std::string, std::vector<char>> arrays() const {
    std::map<std::string, std::vector<char>> copy;
    for (const StateArray& array : trainer->state().arrays()) {
      for (const StateArray::Piece& piece : array.pieces) {
        std::vector<char>& bytes = copy[array.name];
        bytes.resize(piece.values.bytes());
        device->copy_to_host(bytes.data(), piece.values.data, bytes.size());
      }
    }
    return copy;
  }

  void resume(const Checkpoint& checkpoint) {
    restore_arrays(checkpoint, trainer->state(), world, *device);
    trainer->restored(restored_sums(checkpoint.manifest.progress, world.rank(), world.size()));
  }
};

TrainerOptions options_with(OptimizerKind kind, Zero zero, std::int64_t grad_accum = 1) {
  TrainerOptions options;
  options.grad_accum = grad_accum;
  options.bucket_bytes = 1000;
  options.last_bucket_bytes = 500;
  options.optimizer.kind = kind;
  options.zero = zero;
  return options;
}

/// A folder of this test that all ranks know; empty at first, and gone at last.
struct TestFolder : fs::path {
  explicit TestFolder(const std::string& name)
      : fs::path(test_world().all_gather(testing::TempDir() + fmt::format("ckpt_{}_{}", name, getpid())).front()) {
    if (test_world().rank() == 0) fs::create_directories(*this);
    test_world().barrier();
  }
  ~TestFolder() {
    test_world().barrier();
    if (test_world().rank() == 0) fs::remove_all(*this);
  }
};

RunIdentity identity(const World& world) {
  RunIdentity run;
  run.model = "gpt";
  run.world_size = world.size();
  run.batch = run.samples_per_step = 1;
  run.flags = {{"--lr", "0.1"}};
  return run;
}

WrittenCheckpoint write(Replica& run, const fs::path& folder, std::int64_t step, std::int64_t keep = 10) {
  CheckpointOptions options;
  options.folder = folder.string();
  options.keep = keep;
  CheckpointWriter writer(options, identity(run.world), *run.trainer, run.world, *run.device);
  const auto failed = writer.start({step, {}, {}, {}});
  return failed ? *failed : writer.wait().value();
}

std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, path] : checkpoints_in(folder)) steps.push_back(step);
  return steps;
}

TEST(Checkpoint, ARunGoesOnWithTheSameBits) {
  const TestFolder folder("exact");
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

TEST(Checkpoint, WhatIsCopiedIsTheStateAtTheCallThoughTrainingGoesOn) {
  const TestFolder folder("snapshot");
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(2);
  const auto expected = run.arrays();
  CheckpointOptions options;
  options.folder = folder.string();
  CheckpointWriter writer(options, identity(test_world()), *run.trainer, test_world(), *run.device);
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
  const TestFolder folder("ranks");
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
    std::map<std::string, std::vector<int>> written = {
        {"a", std::vector<int>(13)}, {"b", std::vector<int>(700)}, {"c", {0}}};
    std::size_t most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      std::size_t mine = 0;
      for (const StateArray& part : arrays_to_write(arrays, rank, ranks)) {
        for (const StateArray::Piece& piece : part.pieces) {
          if (part.name == "d") {
            EXPECT_EQ(piece.values.size(), 99);
            continue;
          }
          mine += piece.values.bytes();
          const auto& whole = part.name == "a" ? arrays[0] : part.name == "b" ? arrays[1] : arrays[2];
          EXPECT_EQ(piece.values.as<char>(),
                    whole.pieces[0].values.as<char>() + piece.begin * static_cast<std::int64_t>(size_of(part.dtype)));
          for (std::int64_t i = 0; i < piece.values.size(); ++i) ++written.at(part.name).at(piece.begin + i);
        }
      }
      most = std::max(most, mine);
    }
    for (const auto& [name, counts] : written) {
      for (const int count : counts) ASSERT_EQ(count, 1) << name << " on " << ranks;
    }
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

  TestFolder folder_{"parts"};
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

class Damaged : public testing::Test {
 protected:
  void SetUp() override {
    Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
    for (const std::int64_t step : {10, 20, 30}) {
      run.trainer->run(10);
      ASSERT_EQ(write(run, folder_, step).error, "");
    }
  }

  /// By rank 0, in the newest checkpoint; the one before it is found then, and the newest is refused by name.
  void expect_skipped_after(const std::string& what, const std::function<void(const fs::path&)>& damage,
                            const std::string& reason) {
    const fs::path newest = checkpoint_path(folder_, 30);
    if (test_world().rank() == 0) {
      fs::copy(newest, folder_ / "kept", fs::copy_options::recursive);
      damage(newest);
    }
    test_world().barrier();
    EXPECT_CONTAINS(fault_of(newest), reason) << what << ": ";
    const auto found = find_checkpoint(test_world(), folder_);
    ASSERT_TRUE(found) << what;
    EXPECT_EQ(found->manifest.progress.step, 20) << what;
    if (test_world().max(has_manifest(newest) ? 1.0 : 0.0) > 0.0) {
      EXPECT_THROW(find_checkpoint(test_world(), newest), UsageError) << what;
    }
    test_world().barrier();
    if (test_world().rank() == 0) {
      fs::remove_all(newest);
      fs::rename(folder_ / "kept", newest);
    }
    test_world().barrier();
    EXPECT_EQ(find_checkpoint(test_world(), folder_)->manifest.progress.step, 30) << what;
  }

  TestFolder folder_{"damaged"};
};

void flip_byte(const fs::path& path, std::int64_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at < 0 ? static_cast<std::int64_t>(fs::file_size(path)) + at : at);
  const auto place = file.tellg();
  const auto byte = static_cast<char>(file.get() ^ 1);
  file.seekp(place);
  file.put(byte);
}

TEST_F(Damaged, AnOlderOneIsTakenAndTheReasonNamed) {
  const std::string last = fmt::format("rank-{:05}.safetensors", test_world().size() - 1);
  expect_skipped_after(
      "last byte", [&](const fs::path& path) { flip_byte(path / last, -1); }, last + ": damaged");
  expect_skipped_after(
      "a byte of the header", [&](const fs::path& path) { flip_byte(path / last, 20); }, "damaged");
  expect_skipped_after(
      "truncated", [&](const fs::path& path) { fs::resize_file(path / last, 100); }, "100 bytes in place of");
  expect_skipped_after(
      "empty", [&](const fs::path& path) { fs::resize_file(path / last, 0); }, "0 bytes in place of");
  expect_skipped_after(
      "no file", [&](const fs::path& path) { fs::remove(path / last); }, last);
  expect_skipped_after(
      "no manifest", [&](const fs::path& path) { fs::remove(path / kManifestName); }, "incomplete");
  expect_skipped_after(
      "half a manifest", [&](const fs::path& path) { fs::resize_file(path / kManifestName, 300); }, "damaged JSON");
  expect_skipped_after(
      "not a manifest", [&](const fs::path& path) { std::ofstream(path / kManifestName) << "{}"; }, "not the manifest");
}

/// Rewrites a manifest as a run would write it, with its checksum.
void change_manifest(const fs::path& path, const std::function<void(Manifest&)>& change) {
  Manifest manifest = read_manifest(path);
  change(manifest);
  std::ofstream(path / kManifestName) << to_json(manifest);
}

void replace_in_manifest(const fs::path& path, const std::string& text, const std::string& by) {
  std::string manifest = to_json(read_manifest(path));
  manifest.replace(manifest.find(text), text.size(), by);
  std::ofstream(path / kManifestName) << manifest;
}

TEST_F(Damaged, AChangedManifestIsFoundOut) {
  expect_skipped_after(
      "of an older ddptrain",
      [](const fs::path& path) { replace_in_manifest(path, "\"version\": 2", "\"version\": 1"); },
      "format version 1, and this program reads version 2: use the ddptrain that wrote it");
  expect_skipped_after(
      "a step that was edited", [](const fs::path& path) { replace_in_manifest(path, "\"step\": 30", "\"step\": 20"); },
      "its XXH3-128 is not the one that it names");
  expect_skipped_after(
      "a space more", [](const fs::path& path) { std::ofstream(path / kManifestName, std::ios::app) << ' '; },
      "its XXH3-128 is not the one that it names");
  expect_skipped_after(
      "another step than that of the arrays",
      [](const fs::path& path) { change_manifest(path, [](Manifest& manifest) { manifest.progress.step = 20; }); },
      "its manifest is of step 20, its arrays of step 30");
  expect_skipped_after(
      "no samples",
      [](const fs::path& path) { change_manifest(path, [](Manifest& manifest) { manifest.run.batch = 0; }); },
      "batch_per_rank is 0");
  expect_skipped_after(
      "escape sequences",
      [](const fs::path& path) { change_manifest(path, [](Manifest& manifest) { manifest.run.data = "\x1b[2J"; }); },
      "it has control characters");
  expect_skipped_after(
      "an array that no file has",
      [](const fs::path& path) {
        change_manifest(path, [](Manifest& manifest) { manifest.arrays.push_back({"more", {3}, "f32"}); });
      },
      "it lacks 3 elements of more");
}

TEST_F(Damaged, AFileOutsideOfTheCheckpointIsNotRead) {
  expect_skipped_after(
      "a path",
      [](const fs::path& path) {
        change_manifest(path, [](Manifest& manifest) { manifest.files[0].name = "../secret"; });
      },
      "is no file");
}

TEST_F(Damaged, LeftOversDoNotMatterAndGoAway) {
  if (test_world().rank() == 0) {
    fs::create_directories(checkpoint_path(folder_, 35));
    std::ofstream(checkpoint_path(folder_, 35) / "rank-00000.safetensors.partial") << "half";
    std::ofstream(checkpoint_path(folder_, 30) / "rank-00000.safetensors.partial") << "half";
    fs::create_directories(folder_ / "step-x");
  }
  test_world().barrier();
  EXPECT_EQ(find_checkpoint(test_world(), folder_)->manifest.progress.step, 30);
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(40);
  ASSERT_EQ(write(run, folder_, 40, 2).error, "");
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{30, 40}));
  EXPECT_TRUE(fs::exists(folder_ / "step-x"));
}

TEST_F(Damaged, FilesThatNoRunWroteStay) {
  const std::vector<fs::path> others = {
      folder_ / "step-5" / "photos" / "a.txt", checkpoint_path(folder_, 10) / "photos" / "a.txt",
      checkpoint_path(folder_, 10) / "rank-1.safetensors.txt", folder_ / "elsewhere" / "rank-00000.safetensors",
      folder_ / "elsewhere" / kManifestName};
  if (test_world().rank() == 0) {
    for (const fs::path& path : others) {
      fs::create_directories(path.parent_path());
      std::ofstream(path) << "precious";
    }
    fs::create_directory_symlink(folder_ / "elsewhere", checkpoint_path(folder_, 5));
  }
  test_world().barrier();
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(40);
  ASSERT_EQ(write(run, folder_, 40, 1).error, "");
  for (const fs::path& path : others) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_EQ(fault_of(checkpoint_path(folder_, 40)), "");
  EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 20)));
  EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 10) / "rank-00000.safetensors"));
}

TEST_F(Damaged, AnOldOneThatCannotBeRemovedDoesNotHarmTheNewOne) {
  const fs::path stays = checkpoint_path(folder_, 10) / "rank-00009.safetensors" / "file";  // a folder in the way
  if (test_world().rank() == 0) {
    fs::create_directories(stays.parent_path());
    std::ofstream(stays) << "in the way";
  }
  test_world().barrier();
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(40);
  ASSERT_EQ(write(run, folder_, 40, 2).error, "");
  EXPECT_TRUE(fs::exists(stays));
  EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 20)));
  EXPECT_EQ(fault_of(checkpoint_path(folder_, 40)), "");
}

TEST_F(Damaged, OneThatTheReaderRefusesIsNotCompleteAndRemovesNone) {
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(40);
  const std::string error = write(run, folder_, 41, 1).error;  // its arrays are of step 40
  EXPECT_CONTAINS(error, "it cannot be read: ");
  test_world().barrier();
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{10, 20, 30}));
}

TEST_F(Damaged, DamagedOnesDoNotTakeThePlaceOfGoodOnes) {
  if (test_world().rank() == 0) {
    std::ofstream(checkpoint_path(folder_, 20) / kManifestName) << "{}";
    flip_byte(checkpoint_path(folder_, 30) / "rank-00000.safetensors", -1);
  }
  test_world().barrier();
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(40);
  for (const std::int64_t keep : {2, 1}) {
    ASSERT_EQ(write(run, folder_, 40, keep).error, "");
    EXPECT_EQ(steps_in(folder_),
              keep == 2 ? (std::vector<std::int64_t>{10, 20, 30, 40}) : std::vector<std::int64_t>{40});
  }
}

TEST_F(Damaged, AManifestThatCannotBeLookedAtIsNoBeginning) {
  if (test_world().rank() == 0) {
    for (const std::int64_t step : {10, 20, 30}) {
      const fs::path manifest = checkpoint_path(folder_, step) / kManifestName;
      fs::remove(manifest);
      fs::create_symlink(manifest, manifest);
    }
  }
  test_world().barrier();
  EXPECT_THROW(find_checkpoint(test_world(), folder_), UsageError);
}

TEST_F(Damaged, LinksAreNotWrittenThrough) {
  const fs::path precious = folder_ / "precious";
  if (test_world().rank() == 0) {
    std::ofstream(precious) << "precious";
    fs::create_directories(checkpoint_path(folder_, 40));
    fs::create_symlink(precious, checkpoint_path(folder_, 40) / "rank-00000.safetensors.partial");
    fs::create_directory_symlink(folder_, checkpoint_path(folder_, 41));
  }
  test_world().barrier();
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  run.trainer->run(40);
  EXPECT_EQ(write(run, folder_, 40, 4).error, "");
  EXPECT_EQ(fs::file_size(precious), 8U);
  run.trainer->run(1);
  EXPECT_NE(write(run, folder_, 41, 4).error, "");
  EXPECT_FALSE(fs::exists(folder_ / "rank-00000.safetensors"));
}

TEST_F(Damaged, WhereNoneCanBeUsedEachIsNamed) {
  if (test_world().rank() == 0) {
    std::ofstream(checkpoint_path(folder_, 10) / kManifestName) << "{}";
    fs::resize_file(checkpoint_path(folder_, 20) / "rank-00000.safetensors", 100);
    flip_byte(checkpoint_path(folder_, 30) / "rank-00000.safetensors", -1);
  }
  test_world().barrier();
  const std::string text = error_message([&] { find_checkpoint(test_world(), folder_); });
  for (const char* part : {"none of its checkpoints can be used", "step-000000000010/manifest.json: not the manifest",
                           "step-000000000020/rank-00000.safetensors: 100 bytes in place of",
                           "step-000000000030/rank-00000.safetensors: damaged"}) {
    EXPECT_CONTAINS(text, part);
  }
  test_world().barrier();
  if (test_world().rank() == 0) {
    for (const std::int64_t step : {10, 20, 30}) fs::remove(checkpoint_path(folder_, step) / kManifestName);
  }
  test_world().barrier();
  EXPECT_FALSE(find_checkpoint(test_world(), folder_)) << "incomplete ones are no checkpoints";
}

TEST_F(Damaged, ArraysOfAnotherModelOrOptimizerAreNamed) {
  const auto checkpoint = find_checkpoint(test_world(), folder_);
  const auto message_of = [&](Replica& run) { return error_message([&] { run.resume(*checkpoint); }); };
  Replica wider(test_world(), options_with(OptimizerKind::adamw, Zero::nothing), 10);
  EXPECT_CONTAINS(message_of(wider), "needs f32 [8, 10]");
  Replica sgd(test_world(), options_with(OptimizerKind::sgd, Zero::nothing));
  EXPECT_CONTAINS(message_of(sgd), "slot_1/");
}

TEST_F(Damaged, ElementsThatNoFileHasAreAnError) {
  if (test_world().size() == 1) GTEST_SKIP() << "one file has all";
  Checkpoint checkpoint = *find_checkpoint(test_world(), folder_);
  checkpoint.manifest.files.pop_back();
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  EXPECT_CONTAINS(error_message<Error>([&] { run.resume(checkpoint); }), "it lacks ");
}

TEST(Checkpoint, AFullDiskIsAnErrorOnAllRanksAndLeavesTheOldOneIntact) {
  const TestFolder folder("full");
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
  const TestFolder folder("file_in_the_way");
  Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
  if (test_world().rank() == 0) std::ofstream(checkpoint_path(folder, 2)) << "in the way";
  test_world().barrier();
  EXPECT_NE(write(run, folder, 2).error, "");
}

TEST(Checkpoint, TheNewestAreKept) {
  const TestFolder folder("keep");
  Replica run(test_world(), options_with(OptimizerKind::sgd, Zero::nothing));
  for (const std::int64_t step : {5, 10, 15, 20}) {
    run.trainer->run(5);
    ASSERT_EQ(write(run, folder, step, 2).error, "");
  }
  EXPECT_EQ(steps_in(folder), (std::vector<std::int64_t>{15, 20}));
}

TEST(Checkpoint, ManifestsReadAsTheyWereWritten) {
  Manifest manifest;
  manifest.run = identity(test_world());
  manifest.run.world_size = 2;
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
  EXPECT_EQ(read.progress.epochs.at(0).train_loss, 0.1 + 0.2);
  EXPECT_TRUE(std::isnan(read.progress.epochs[0].test_loss));
  EXPECT_EQ(read.progress.epoch_sums.loss, 1.0 / 3.0);
  EXPECT_TRUE(std::isnan(read.progress.rank_sums.at(0).loss));
  EXPECT_EQ(read.arrays.at(0).placement, Placement::sharded);
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

TEST(StepPace, PiecesGrowToAThirdOfASecondAndShrinkAgain) {
  Replica run(test_world(), options_with(OptimizerKind::sgd, Zero::nothing));
  StepPace pace(test_world(), *run.device);
  EXPECT_EQ(pace.left(), 1);
  for (int i = 0; i < 6 || (i < 1000 && pace.left() == 1); ++i) {  // the machine may stand still during the last one
    EXPECT_TRUE(pace.queued(pace.left()));
    pace.next_piece();
  }
  const std::int64_t fast = pace.left();
  EXPECT_GT(fast, 1);  // how much it is depends on the machine
  EXPECT_TRUE(fast < 8 || fast % 8 == 0) << fast;
  EXPECT_FALSE(pace.queued(fast - 1));
  EXPECT_EQ(pace.left(), 1);
  EXPECT_TRUE(pace.queued(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(test_world().rank() == 0 ? 700 : 0));
  pace.next_piece();
  EXPECT_LT(pace.left(), fast);
  EXPECT_EQ(test_world().min(static_cast<double>(pace.left())), test_world().max(static_cast<double>(pace.left())));
}

}  // namespace
}  // namespace ddptrain
