#include "tests/train/checkpoint/checkpoint_rig.h"

#include <sys/stat.h>

#include <fstream>

#include "tests/support/says.h"

namespace ddptrain::tests {
namespace {

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
    on_one_rank([&] {
      fs::copy(newest, folder_ / "kept", fs::copy_options::recursive);
      damage(newest);
    });
    EXPECT_CONTAINS(fault_of(newest), reason) << what << ": ";
    const auto found = find_checkpoint(test_world(), folder_);
    ASSERT_TRUE(found) << what;
    EXPECT_EQ(found->manifest.progress.step, 20) << what;
    if (test_world().max(has_manifest(newest) ? 1.0 : 0.0) > 0.0) {
      EXPECT_THROW(find_checkpoint(test_world(), newest), UsageError) << what;
    }
    test_world().barrier();
    on_one_rank([&] {
      fs::remove_all(newest);
      fs::rename(folder_ / "kept", newest);
    });
    EXPECT_EQ(find_checkpoint(test_world(), folder_)->manifest.progress.step, 30) << what;
  }

  /// On rank 0, while the others wait.
  static void on_one_rank(const std::function<void()>& work) {
    if (test_world().rank() == 0) work();
    test_world().barrier();
  }

  /// A run that goes on to `steps` and writes then, as if they were `as_step`.
  WrittenCheckpoint written_after(std::uint64_t steps, std::int64_t as_step, std::int64_t keep) const {
    Replica run(test_world(), options_with(OptimizerKind::adamw, Zero::nothing));
    run.trainer->run(steps);
    return write(run, folder_, as_step, keep);
  }

  SharedFolder folder_{"damaged"};
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
  for (const auto make : {mkdir, mkfifo}) {
    expect_skipped_after(
        "no file that can be read",
        [&](const fs::path& path) {
          fs::remove(path / kManifestName);
          make((path / kManifestName).c_str(), 0777);
        },
        "manifest.json: not a file that can be read");
  }
}

using Damage = std::function<void(const fs::path&)>;

/// Rewrites a manifest as a run would write it, with its checksum.
Damage changed(const std::function<void(Manifest&)>& change) {
  return [change](const fs::path& path) {
    Manifest manifest = read_manifest(path);
    change(manifest);
    std::ofstream(path / kManifestName) << to_json(manifest);
  };
}

Damage replaced(const std::string& text, const std::string& by) {
  return [text, by](const fs::path& path) {
    std::string manifest = to_json(read_manifest(path));
    manifest.replace(manifest.find(text), text.size(), by);
    std::ofstream(path / kManifestName) << manifest;
  };
}

TEST_F(Damaged, AChangedManifestIsFoundOut) {
  expect_skipped_after("of an older ddptrain", replaced("\"version\": 2", "\"version\": 1"),
                       "format version 1, and this program reads version 2: use the ddptrain that wrote it");
  expect_skipped_after("a step that was edited", replaced("\"step\": 30", "\"step\": 20"),
                       "its XXH3-128 is not the one that it names");
  expect_skipped_after(
      "a space more", [](const fs::path& path) { std::ofstream(path / kManifestName, std::ios::app) << ' '; },
      "its XXH3-128 is not the one that it names");
  expect_skipped_after("another step than that of the arrays",
                       changed([](Manifest& manifest) { manifest.progress.step = 20; }),
                       "its manifest is of step 20, its arrays of step 30");
  expect_skipped_after("no samples", changed([](Manifest& manifest) { manifest.run.batch = 0; }),
                       "batch_per_rank is 0");
  for (const char* control : {"\x1b[2J", "a\n", "\xc3\xa9\xc2\x9b"}) {
    expect_skipped_after("escape sequences", changed([&](Manifest& manifest) { manifest.run.data = control; }),
                         "it has control characters");
  }
  expect_skipped_after("an array that no file has", changed([](Manifest& manifest) {
                         manifest.arrays.push_back({"more", {3}, "f32"});
                       }),
                       "it lacks 3 elements of more");
  expect_skipped_after("a file outside of the checkpoint",
                       changed([](Manifest& manifest) { manifest.files[0].name = "../secret"; }), "is no file");
}

TEST_F(Damaged, LeftOversDoNotMatterAndGoAway) {
  on_one_rank([&] {
    fs::create_directories(checkpoint_path(folder_, 35));
    std::ofstream(checkpoint_path(folder_, 35) / "rank-00000.safetensors.partial") << "half";
    std::ofstream(checkpoint_path(folder_, 30) / "rank-00000.safetensors.partial") << "half";
    fs::create_directories(folder_ / "step-x");
  });
  EXPECT_EQ(find_checkpoint(test_world(), folder_)->manifest.progress.step, 30);
  ASSERT_EQ(written_after(40, 40, 2).error, "");
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{30, 40}));
  EXPECT_TRUE(fs::exists(folder_ / "step-x"));
}

TEST_F(Damaged, FilesThatNoRunWroteStay) {
  const std::vector<fs::path> others = {
      folder_ / "step-5" / "photos" / "a.txt", checkpoint_path(folder_, 10) / "photos" / "a.txt",
      checkpoint_path(folder_, 10) / "rank-1.safetensors.txt", folder_ / "elsewhere" / "rank-00000.safetensors",
      folder_ / "elsewhere" / kManifestName};
  on_one_rank([&] {
    for (const fs::path& path : others) {
      fs::create_directories(path.parent_path());
      std::ofstream(path) << "precious";
    }
    fs::create_directory_symlink(folder_ / "elsewhere", checkpoint_path(folder_, 5));
  });
  ASSERT_EQ(written_after(40, 40, 1).error, "");
  for (const fs::path& path : others) EXPECT_TRUE(fs::exists(path)) << path;
  EXPECT_EQ(fault_of(checkpoint_path(folder_, 40)), "");
  EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 20)));
  EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 10) / "rank-00000.safetensors"));
}

TEST_F(Damaged, AnOldOneThatCannotBeRemovedDoesNotHarmTheNewOne) {
  const fs::path stays = checkpoint_path(folder_, 10) / "rank-00009.safetensors" / "file";  // a folder in the way
  on_one_rank([&] {
    fs::create_directories(stays.parent_path());
    std::ofstream(stays) << "in the way";
  });
  ASSERT_EQ(written_after(40, 40, 2).error, "");
  EXPECT_TRUE(fs::exists(stays));
  EXPECT_FALSE(fs::exists(checkpoint_path(folder_, 20)));
  EXPECT_EQ(fault_of(checkpoint_path(folder_, 40)), "");
}

TEST_F(Damaged, OneThatTheReaderRefusesIsNotCompleteAndRemovesNone) {
  const std::string error = written_after(40, 41, 1).error;  // its arrays are of step 40
  EXPECT_CONTAINS(error, "it cannot be read: ");
  test_world().barrier();
  EXPECT_EQ(steps_in(folder_), (std::vector<std::int64_t>{10, 20, 30}));
}

TEST_F(Damaged, DamagedOnesDoNotTakeThePlaceOfGoodOnes) {
  on_one_rank([&] {
    std::ofstream(checkpoint_path(folder_, 20) / kManifestName) << "{}";
    flip_byte(checkpoint_path(folder_, 30) / "rank-00000.safetensors", -1);
  });
  for (const std::int64_t keep : {2, 1}) {
    ASSERT_EQ(written_after(40, 40, keep).error, "");
    EXPECT_EQ(steps_in(folder_),
              keep == 2 ? (std::vector<std::int64_t>{10, 20, 30, 40}) : std::vector<std::int64_t>{40});
  }
}

TEST_F(Damaged, AManifestThatCannotBeLookedAtIsNoBeginning) {
  on_one_rank([&] {
    for (const std::int64_t step : {10, 20, 30}) {
      const fs::path manifest = checkpoint_path(folder_, step) / kManifestName;
      fs::remove(manifest);
      fs::create_symlink(manifest, manifest);
    }
  });
  EXPECT_THROW(find_checkpoint(test_world(), folder_), UsageError);
}

TEST_F(Damaged, LinksAreNotWrittenThrough) {
  const fs::path precious = folder_ / "precious";
  on_one_rank([&] {
    std::ofstream(precious) << "precious";
    fs::create_directories(checkpoint_path(folder_, 40));
    fs::create_symlink(precious, checkpoint_path(folder_, 40) / "rank-00000.safetensors.partial");
    fs::create_directory_symlink(folder_, checkpoint_path(folder_, 41));
  });
  EXPECT_EQ(written_after(40, 40, 4).error, "");
  EXPECT_EQ(fs::file_size(precious), 8U);
  EXPECT_NE(written_after(41, 41, 4).error, "");
  EXPECT_FALSE(fs::exists(folder_ / "rank-00000.safetensors"));
}

TEST_F(Damaged, WhereNoneCanBeUsedEachIsNamed) {
  on_one_rank([&] {
    std::ofstream(checkpoint_path(folder_, 10) / kManifestName) << "{}";
    fs::resize_file(checkpoint_path(folder_, 20) / "rank-00000.safetensors", 100);
    flip_byte(checkpoint_path(folder_, 30) / "rank-00000.safetensors", -1);
  });
  const std::string text = error_message([&] { find_checkpoint(test_world(), folder_); });
  for (const char* part : {"none of its checkpoints can be used", "step-000000000010/manifest.json: not the manifest",
                           "step-000000000020/rank-00000.safetensors: 100 bytes in place of",
                           "step-000000000030/rank-00000.safetensors: damaged"}) {
    EXPECT_CONTAINS(text, part);
  }
  test_world().barrier();
  on_one_rank([&] {
    for (const std::int64_t step : {10, 20, 30}) fs::remove(checkpoint_path(folder_, step) / kManifestName);
  });
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

}  // namespace
}  // namespace ddptrain::tests
