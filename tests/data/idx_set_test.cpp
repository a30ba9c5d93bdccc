#include "data/images/idx_set.h"

#include <array>
#include <cstdlib>
#include <numeric>

#include "data/images/idx.h"
#include "data/images/images.h"
#include "tests/data/idx_files.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;
namespace fs = std::filesystem;

/// Four well-formed files: 5 training and 3 test images, pixels counting up, label i % 10.
class IdxSetTest : public ::testing::Test {
 protected:
  IdxSetTest() {
    write("train", 5, 5);
    write("t10k", 3, 3);
  }
  ~IdxSetTest() override {
    unsetenv("DDPTRAIN_DATA");
    fs::current_path(start_);
  }

  void write(const std::string& part, std::uint32_t images, std::uint32_t labels, std::uint32_t height = 28,
             std::uint32_t width = 28) {
    Bytes pixels(images * height * width);
    std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
    Bytes values(labels);
    for (std::size_t i = 0; i < labels; ++i) values[i] = static_cast<std::uint8_t>(i % 10);
    write_gzip(folder_ / (part + "-images-idx3-ubyte.gz"), idx_bytes(kIdxImages, {images, height, width}, pixels));
    write_plain(folder_ / (part + "-labels-idx1-ubyte"), idx_bytes(kIdxLabels, {labels}, values));
  }
  void rename(const std::string& from, const std::string& to) { fs::rename(folder_ / from, folder_ / to); }

  ImageData load() const { return find_images(folder_.path(), 1)(); }
  std::string fault() const {
    return error_message([&] { load(); });
  }

  TempFolder folder_;
  fs::path start_ = fs::current_path();
};

TEST_F(IdxSetTest, LoadsPlainAndGzipSideBySide) {
  const ImageData data = load();
  EXPECT_EQ(data.train.count, 5);
  EXPECT_EQ(data.test.count, 3);
  EXPECT_EQ(data.train.height, 28);
  EXPECT_EQ(data.train.width, 28);
  EXPECT_EQ(data.train.classes, 5);
  EXPECT_EQ(data.train.labels, (Bytes{0, 1, 2, 3, 4}));
  ASSERT_EQ(data.test.images.size(), 3u * 784);
  EXPECT_EQ(data.test.images[1000], 1000 % 256);
}

TEST_F(IdxSetTest, ImagesMayHaveAnotherSize) {
  write("train", 5, 5, 32, 24);
  EXPECT_CONTAINS(fault(), "t10k-images-idx3-ubyte.gz: images of 28x28, and those in ");
  write("t10k", 3, 3, 32, 24);
  const ImageData data = load();
  EXPECT_EQ(data.train.height, 32);
  EXPECT_EQ(data.test.width, 24);
}

/// As MNIST is found here and there, and as EMNIST is distributed.
TEST_F(IdxSetTest, NamesAreThoseOfDistributions) {
  rename("train-images-idx3-ubyte.gz", "train-images.idx3-ubyte.gz");
  rename("t10k-labels-idx1-ubyte", "t10k-labels.idx1-ubyte");
  EXPECT_EQ(load().test.count, 3);
  for (const char* part : {"train-images.idx3-ubyte.gz", "train-labels-idx1-ubyte"}) {
    rename(part, std::string("emnist-letters-") + part);
  }
  rename("t10k-images-idx3-ubyte.gz", "emnist-letters-test-images-idx3-ubyte.gz");
  rename("t10k-labels.idx1-ubyte", "emnist-letters-test-labels-idx1-ubyte");
  EXPECT_EQ(load().train.count, 5);
  EXPECT_EQ(find_images(folder_ / "emnist-letters", 1)().train.count, 5);
  write("train", 6, 6);
  write("t10k", 3, 3);
  EXPECT_CONTAINS(fault(), "several IDX data sets. Give one of ");
  EXPECT_CONTAINS(fault(), "/emnist-letters");
  EXPECT_EQ(find_images(folder_ / "emnist-letters", 1)().train.count, 5);
}

TEST_F(IdxSetTest, CountsMustAgree) {
  write("t10k", 3, 4);
  const std::string message = fault();
  EXPECT_CONTAINS(message, "3 images, but 4 labels");
  EXPECT_CONTAINS(message, "t10k-labels-idx1-ubyte");
}

/// 12 MB that promise 12 GB.
TEST_F(IdxSetTest, FilesOfGigabytesAreRefusedBeforeTheyAreDecompressed) {
  const fs::path images = folder_ / "train-images-idx3-ubyte.gz";
  const auto replace = [&](std::uint32_t count, std::uint32_t side) {
    write_gzip(images, idx_bytes(kIdxImages, {count, side, side}, {}));
    fs::resize_file(images, 12 << 20);
  };
  replace(60000, 450);
  EXPECT_CONTAINS(fault(), "12150000000 bytes of images, more than 4294967296");
  replace(15'500'000, 28);
  EXPECT_CONTAINS(fault(), "15500000 entries, more than 1000000");
  replace(1, 2000);
  EXPECT_CONTAINS(fault(), "images of 2000x2000, larger than 1024x1024");
}

TEST_F(IdxSetTest, LabelsAreClasses) {
  write_plain(folder_ / "train-labels-idx1-ubyte", idx_bytes(kIdxLabels, {5}, {9, 0, 9, 10, 255}));
  const std::string message = fault();
  EXPECT_CONTAINS(message, "label 255 at index 4, and only 4 different labels");
  EXPECT_CONTAINS(message, "train-labels-idx1-ubyte");
}

TEST_F(IdxSetTest, SaysWhatIsMissing) {
  fs::remove(folder_ / "t10k-labels-idx1-ubyte");
  const std::string message = fault();
  EXPECT_CONTAINS(message, folder_.path().string());
  EXPECT_CONTAINS(message, "missing: t10k-labels-idx1-ubyte[.gz]");
}

TEST_F(IdxSetTest, AFolderWithoutImagesSaysWhatThereCouldBe) {
  const std::string message = error_message([&] { find_images("/proc/self/net", 1); });
  EXPECT_CONTAINS(message, "/proc/self/net: no IDX data set");
  EXPECT_CONTAINS(message, "launch/fetch-data fashion-mnist");
  EXPECT_CONTAINS(error_message([&] { find_images("/nowhere/flag", 1); }), "/nowhere/flag: there is no such folder");
}

TEST_F(IdxSetTest, FlagWinsOverEnvironmentWinsOverDefaults) {
  setenv("DDPTRAIN_DATA", folder_.path().c_str(), 1);
  EXPECT_EQ(find_images("", 1)().train.count, 5);
  EXPECT_CONTAINS(error_message([&] { find_images("/nowhere/flag", 1); }), "/nowhere/flag");

  const fs::path downloads = folder_ / "data/downloads/fashion-mnist";
  fs::create_directories(downloads);
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    if (entry.is_regular_file()) fs::copy_file(entry.path(), downloads / entry.path().filename());
  }
  unsetenv("DDPTRAIN_DATA");
  fs::current_path(folder_.path());
  EXPECT_EQ(find_images("", 1)().train.count, 5);
}

TEST(FashionMnistPackage, HoldsTheRealDataSet) {
  const fs::path dir = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(dir)) GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  const ImageData data = find_images(dir, 1)();
  EXPECT_EQ(data.train.count, 60000);
  EXPECT_EQ(data.test.count, 10000);
  EXPECT_EQ(data.train.classes, 10);
  for (const auto& [set, per_class] : {std::pair{&data.train, 6000}, std::pair{&data.test, 1000}}) {
    std::array<int, 10> counts{};
    for (const std::uint8_t label : set->labels) ++counts.at(label);
    for (const int count : counts) EXPECT_EQ(count, per_class);
  }
  const double sum = std::accumulate(data.train.images.begin(), data.train.images.end(), 0.0);
  EXPECT_NEAR(sum / 255.0 / static_cast<double>(data.train.images.size()), 0.2860, 1e-4);  // the mean people publish
}

}  // namespace
}  // namespace ddptrain
