#include "data/images/image_folders.h"

#include "tests/data/image_files.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;
namespace fs = std::filesystem;

class ImageFoldersTest : public ::testing::Test {
 protected:
  void write(const std::string& name, const Bytes& content) {
    fs::create_directories((folder_ / name).parent_path());
    write_plain(folder_ / name, content);
  }
  /// 2x2 pixels of one value.
  void write_pixels(const std::string& name, std::uint8_t value) { write(name, pgm(2, 2, Bytes(4, value))); }
  ImageData load() { return load_image_folders(find_image_folders(folder_.path()).value()); }
  std::string fault() {
    return error_message([&] { load(); });
  }

  TempFolder folder_;
};

TEST_F(ImageFoldersTest, TrainingAndTestHaveFoldersForEachClass) {
  write_pixels("train/dog/b.pgm", 2);
  write_pixels("train/dog/a.pgm", 1);
  write_pixels("train/cat/1.PGM", 3);
  write("train/cat/notes.txt", {1, 2});
  write("train/cat/._1.png", {1, 2});
  write_pixels("test/dog/x.pgm", 4);
  const ImageData data = load();
  EXPECT_EQ(data.class_names, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(data.train.classes, 2);
  EXPECT_EQ(data.train.count, 3);
  EXPECT_EQ(data.train.labels, (Bytes{0, 1, 1}));
  EXPECT_EQ(data.train.images, (Bytes{3, 3, 3, 3, 1, 1, 1, 1, 2, 2, 2, 2}));
  EXPECT_EQ(data.test.labels, (Bytes{1}));
  EXPECT_EQ(data.test.images, (Bytes{4, 4, 4, 4}));
}

TEST_F(ImageFoldersTest, WithoutATestFolderEveryTenthImageIsForTesting) {
  for (int i = 0; i < 20; ++i) write_pixels(fmt::format("10/{:02}.pgm", i), static_cast<std::uint8_t>(i));
  for (int i = 0; i < 9; ++i) write_pixels(fmt::format("9/{}.pgm", i), 99);
  const ImageData data = load();
  EXPECT_EQ(data.class_names, (std::vector<std::string>{"9", "10"}));  // numbers by value
  EXPECT_EQ(data.train.count, 27);
  EXPECT_EQ(data.test.labels, (Bytes{1, 1}));
  EXPECT_EQ(data.test.images, (Bytes{9, 9, 9, 9, 19, 19, 19, 19}));
}

TEST_F(ImageFoldersTest, FormatsMayBeMixed) {
  write("train/a/1.png", kGreyPng);
  write("train/b/1.jpg", kGreyJpeg);
  write("val/a/1.pgm", pgm(2, 3, kSixPixels));
  const ImageData data = load();
  EXPECT_EQ(data.train.height, 2);
  EXPECT_EQ(data.train.width, 3);
  EXPECT_EQ(data.test.images, kSixPixels);
}

TEST_F(ImageFoldersTest, ImagesAreOfOneSize) {
  write_pixels("train/a/1.pgm", 1);
  write("train/b/2.pgm", pgm(2, 3, kSixPixels));
  write_pixels("test/a/1.pgm", 1);
  EXPECT_CONTAINS(fault(), "train/b/2.pgm: 2x3 pixels, and other images have 2x2");
}

TEST_F(ImageFoldersTest, FaultsNameTheFile) {
  write_pixels("train/a/1.pgm", 1);
  write("train/b/2.png", {'n', 'o'});
  write_pixels("test/a/1.pgm", 1);
  EXPECT_CONTAINS(fault(), "train/b/2.png: not an image");
}

TEST_F(ImageFoldersTest, ClassesBelongTogether) {
  EXPECT_FALSE(find_image_folders(folder_.path()));
  write_pixels("train/a/1.pgm", 1);
  EXPECT_CONTAINS(fault(), "one class alone");
  write_pixels("train/b/1.pgm", 1);
  EXPECT_CONTAINS(fault(), "no images for testing");
  write_pixels("test/c/1.pgm", 1);
  EXPECT_CONTAINS(fault(), "class 'c' has images for testing and none for training");
}

}  // namespace
}  // namespace ddptrain
