#include "data/images/idx.h"

#include "tests/data/idx_files.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;

Bytes ramp(std::size_t count) {
  Bytes values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint8_t>(i * 7);
  return values;
}

std::string fault(const std::filesystem::path& path, std::uint32_t magic = kIdxImages) {
  const std::string message = error_message([&] { read_idx(path, magic); });
  EXPECT_CONTAINS(message, path.string());
  return message;
}

class IdxTest : public ::testing::Test {
 protected:
  TempFolder folder_;
};

TEST_F(IdxTest, ReadsPlainAndGzip) {
  const Bytes content = idx_bytes(kIdxImages, {3, 4, 5}, ramp(60));
  write_plain(folder_ / "plain", content);
  write_gzip(folder_ / "packed", content);
  for (const char* name : {"plain", "packed"}) {
    const IdxFile file = read_idx(folder_ / name, kIdxImages);
    EXPECT_EQ(file.dims, (std::vector<std::uint32_t>{3, 4, 5})) << name;
    EXPECT_EQ(file.bytes, ramp(60)) << name;
  }
  write_plain(folder_ / "labels", idx_bytes(kIdxLabels, {300}, ramp(300)));
  EXPECT_EQ(read_idx(folder_ / "labels", kIdxLabels).bytes, ramp(300));
}

TEST_F(IdxTest, EveryTruncationIsReported) {
  const Bytes content = idx_bytes(kIdxImages, {3, 4, 5}, ramp(60));
  for (std::size_t size = 0; size < content.size(); ++size) {
    write_plain(folder_ / "cut", Bytes(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_CONTAINS(fault(folder_ / "cut"), "truncated");
  }
  EXPECT_CONTAINS(fault(folder_ / "cut"), "59 of the 60 bytes");
}

TEST_F(IdxTest, EveryTruncationOfGzipIsReported) {
  write_gzip(folder_ / "whole", idx_bytes(kIdxImages, {3, 4, 5}, ramp(60)));
  const Bytes packed = read_all(folder_ / "whole");
  for (std::size_t size = 2; size < packed.size(); ++size) {
    write_plain(folder_ / "cut", Bytes(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size)));
    fault(folder_ / "cut");
  }
}

TEST_F(IdxTest, GzipDamageIsReported) {
  write_gzip(folder_ / "whole", idx_bytes(kIdxImages, {3, 4, 5}, ramp(60)));
  Bytes packed = read_all(folder_ / "whole");
  packed[packed.size() - 6] ^= 0x10;  // in the checksum
  write_plain(folder_ / "damaged", packed);
  EXPECT_CONTAINS(fault(folder_ / "damaged"), "damaged gzip");
}

TEST_F(IdxTest, WrongMagicNamesBoth) {
  write_plain(folder_ / "labels", idx_bytes(kIdxLabels, {2}, ramp(2)));
  const std::string message = fault(folder_ / "labels");
  EXPECT_CONTAINS(message, "0x00000801");
  EXPECT_CONTAINS(message, "0x00000803");
  write_plain(folder_ / "text", Bytes(100, 'x'));
  EXPECT_CONTAINS(fault(folder_ / "text"), "magic");
}

TEST_F(IdxTest, TrailingBytesAreReported) {
  write_plain(folder_ / "long", idx_bytes(kIdxImages, {3, 4, 5}, ramp(61)));
  EXPECT_CONTAINS(fault(folder_ / "long"), "more than the 60 bytes");
}

TEST_F(IdxTest, AbsurdSizesAreReportedWithoutAllocatingThem) {
  const std::uint32_t huge = 0xFFFFFFFFu;
  write_plain(folder_ / "huge", idx_bytes(kIdxImages, {huge, huge, huge}, ramp(60)));
  EXPECT_CONTAINS(fault(folder_ / "huge"), "4294967295 entries, more than 1000000");
  write_plain(folder_ / "gigabytes", idx_bytes(kIdxImages, {1000, 1000, 1000}, ramp(60)));
  EXPECT_CONTAINS(fault(folder_ / "gigabytes"), "truncated: 60 of the 1000000000 bytes");
  write_plain(folder_ / "empty", idx_bytes(kIdxImages, {0, 28, 28}, {}));
  EXPECT_CONTAINS(fault(folder_ / "empty"), "size 0");
}

TEST_F(IdxTest, MuchCompressedFilesAreRead) {
  write_gzip(folder_ / "zeros", idx_bytes(kIdxImages, {1000, 100, 100}, Bytes(10'000'000, 0)));
  EXPECT_LT(std::filesystem::file_size(folder_ / "zeros"), 10'500u);
  EXPECT_EQ(read_idx(folder_ / "zeros", kIdxImages).bytes, Bytes(10'000'000, 0));
}

TEST_F(IdxTest, MissingFileAndFolder) {
  EXPECT_CONTAINS(fault(folder_ / "nothing"), "No such file");
  EXPECT_CONTAINS(fault(folder_.path()), "folder");
}

}  // namespace
}  // namespace ddptrain
