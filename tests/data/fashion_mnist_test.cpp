#include "data/fashion_mnist.h"

#include <array>
#include <cstdlib>
#include <numeric>

#include "data/idx.h"
#include "tests/data/idx_files.h"

namespace ddptrain {
namespace {

using namespace ddptrain::testing;
namespace fs = std::filesystem;

/// Four well-formed files: 5 training and 3 test images, pixels counting up, label i % 10.
class FashionMnist : public ::testing::Test {
 protected:
  FashionMnist() {
    write("train", 5, 5);
    write("t10k", 3, 3);
  }
  ~FashionMnist() override {
    unsetenv("DDPTRAIN_DATA");
    fs::current_path(start_);
  }

  void write(const std::string& part, std::uint32_t images, std::uint32_t labels, std::uint32_t side = 28) {
    Bytes pixels(images * side * side);
    std::iota(pixels.begin(), pixels.end(), std::uint8_t{0});
    Bytes values(labels);
    for (std::size_t i = 0; i < labels; ++i) values[i] = static_cast<std::uint8_t>(i % 10);
    write_gzip(folder_ / (part + "-images-idx3-ubyte.gz"), idx_bytes(kIdxImages, {images, side, side}, pixels));
    write_plain(folder_ / (part + "-labels-idx1-ubyte"), idx_bytes(kIdxLabels, {labels}, values));
  }

  std::string load_fault() const {
    return usage_message([&] { load_fashion_mnist(folder_.path()); });
  }

  TempFolder folder_;
  fs::path start_ = fs::current_path();
};

TEST_F(FashionMnist, LoadsPlainAndGzipSideBySide) {
  const ImageData data = load_fashion_mnist(folder_.path());
  EXPECT_EQ(data.train.count, 5);
  EXPECT_EQ(data.test.count, 3);
  EXPECT_EQ(data.train.height, 28);
  EXPECT_EQ(data.train.width, 28);
  EXPECT_EQ(data.train.classes, 10);
  EXPECT_EQ(data.train.labels, (Bytes{0, 1, 2, 3, 4}));
  ASSERT_EQ(data.test.images.size(), 3u * 784);
  EXPECT_EQ(data.test.images[1000], 1000 % 256);
}

TEST_F(FashionMnist, CountsMustAgree) {
  write("t10k", 3, 4);
  const std::string message = load_fault();
  EXPECT_CONTAINS(message, "3 images, but 4 labels");
  EXPECT_CONTAINS(message, "t10k-labels-idx1-ubyte");
}

TEST_F(FashionMnist, ImagesMustBe28By28) {
  write("train", 5, 5, 32);
  EXPECT_CONTAINS(load_fault(), "32x32");
}

/// 12 MB that promise 12 GB.
TEST_F(FashionMnist, FilesOfGigabytesAreRefusedBeforeTheyAreDecompressed) {
  const fs::path images = folder_ / "train-images-idx3-ubyte.gz";
  const auto replace = [&](std::uint32_t count, std::uint32_t side) {
    write_gzip(images, idx_bytes(kIdxImages, {count, side, side}, {}));
    fs::resize_file(images, 12 << 20);
  };
  replace(60000, 450);
  EXPECT_CONTAINS(load_fault(), "450x450, not 28x28");
  replace(15'500'000, 28);
  EXPECT_CONTAINS(load_fault(), "15500000 entries, more than 1000000");
}

TEST_F(FashionMnist, LabelOutOfRangeNamesItsIndex) {
  write_plain(folder_ / "train-labels-idx1-ubyte", idx_bytes(kIdxLabels, {5}, {9, 0, 9, 10, 255}));
  const std::string message = load_fault();
  EXPECT_CONTAINS(message, "label 10 at index 3");
  EXPECT_CONTAINS(message, "train-labels-idx1-ubyte");
}

TEST_F(FashionMnist, SwappedFilesAreForeign) {
  fs::remove(folder_ / "train-images-idx3-ubyte.gz");
  fs::copy_file(folder_ / "train-labels-idx1-ubyte", folder_ / "train-images-idx3-ubyte");
  EXPECT_CONTAINS(load_fault(), "magic");
}

TEST_F(FashionMnist, FindsTheGivenFolderOrSaysWhatIsMissing) {
  EXPECT_EQ(find_fashion_mnist(folder_.path()), folder_.path());
  fs::remove(folder_ / "t10k-labels-idx1-ubyte");
  const std::string message = usage_message([&] { find_fashion_mnist(folder_.path()); });
  EXPECT_CONTAINS(message, folder_.path().string());
  EXPECT_CONTAINS(message, "missing: t10k-labels-idx1-ubyte[.gz])");
  EXPECT_CONTAINS(message, "launch/fetch-data fashion-mnist");
  EXPECT_CONTAINS(message, "dataset-fashion-mnist");
}

TEST_F(FashionMnist, FlagWinsOverEnvironmentWinsOverDefaults) {
  setenv("DDPTRAIN_DATA", folder_.path().c_str(), 1);
  EXPECT_EQ(find_fashion_mnist(""), folder_.path());
  const std::string message = usage_message([&] { find_fashion_mnist("/nowhere/flag"); });
  EXPECT_CONTAINS(message, "/nowhere/flag");
  EXPECT_EQ(message.find(folder_.path().string()), std::string::npos) << message;

  const fs::path downloads = folder_ / "data/downloads/fashion-mnist";
  fs::create_directories(downloads);
  for (const auto& entry : fs::directory_iterator(folder_.path())) {
    if (entry.is_regular_file()) fs::copy_file(entry.path(), downloads / entry.path().filename());
  }
  unsetenv("DDPTRAIN_DATA");
  fs::current_path(folder_.path());
  EXPECT_EQ(find_fashion_mnist(""), fs::path("data/downloads/fashion-mnist"));
}

TEST(FashionMnistPackage, HoldsTheRealDataSet) {
  const fs::path dir = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(dir)) GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  const ImageData data = load_fashion_mnist(dir);
  EXPECT_EQ(data.train.count, 60000);
  EXPECT_EQ(data.test.count, 10000);
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
