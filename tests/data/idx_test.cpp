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

TEST(Idx, ReadsPlainAndGzip) {
  const TempFolder folder;
  const Bytes content = idx_bytes(kIdxImages, {3, 4, 5}, ramp(60));
  write_plain(folder / "plain", content);
  write_gzip(folder / "packed", content);
  for (const char* name : {"plain", "packed"}) {
    const IdxFile file = read_idx(folder / name, kIdxImages);
    EXPECT_EQ(file.dims, (std::vector<std::uint32_t>{3, 4, 5})) << name;
    EXPECT_EQ(file.bytes, ramp(60)) << name;
  }
  write_plain(folder / "labels", idx_bytes(kIdxLabels, {300}, ramp(300)));
  EXPECT_EQ(read_idx(folder / "labels", kIdxLabels).bytes, ramp(300));
}

TEST(Idx, EveryTruncationIsReported) {
  const TempFolder folder;
  const Bytes content = idx_bytes(kIdxImages, {3, 4, 5}, ramp(60));
  for (std::size_t size = 0; size < content.size(); ++size) {
    write_plain(folder / "cut", Bytes(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_CONTAINS(fault(folder / "cut"), "truncated");
  }
  EXPECT_CONTAINS(fault(folder / "cut"), "59 of the 60 bytes");
}

TEST(Idx, EveryTruncationOfGzipIsReported) {
  const TempFolder folder;
  write_gzip(folder / "whole", idx_bytes(kIdxImages, {3, 4, 5}, ramp(60)));
  const Bytes packed = read_all(folder / "whole");
  for (std::size_t size = 2; size < packed.size(); ++size) {
    write_plain(folder / "cut", Bytes(packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(size)));
    fault(folder / "cut");
  }
}

TEST(Idx, GzipDamageIsReported) {
  const TempFolder folder;
  write_gzip(folder / "whole", idx_bytes(kIdxImages, {3, 4, 5}, ramp(60)));
  Bytes packed = read_all(folder / "whole");
  packed[packed.size() - 6] ^= 0x10;  // in the checksum
  write_plain(folder / "damaged", packed);
  EXPECT_CONTAINS(fault(folder / "damaged"), "damaged gzip");
}

TEST(Idx, WrongMagicNamesBoth) {
  const TempFolder folder;
  write_plain(folder / "labels", idx_bytes(kIdxLabels, {2}, ramp(2)));
  const std::string message = fault(folder / "labels");
  EXPECT_CONTAINS(message, "0x00000801");
  EXPECT_CONTAINS(message, "0x00000803");
  write_plain(folder / "text", Bytes(100, 'x'));
  EXPECT_CONTAINS(fault(folder / "text"), "magic");
}

TEST(Idx, TrailingBytesAreReported) {
  const TempFolder folder;
  write_plain(folder / "long", idx_bytes(kIdxImages, {3, 4, 5}, ramp(61)));
  EXPECT_CONTAINS(fault(folder / "long"), "more than the 60 bytes");
}

TEST(Idx, AbsurdSizesAreReportedWithoutAllocatingThem) {
  const TempFolder folder;
  const std::uint32_t huge = 0xFFFFFFFFu;
  write_plain(folder / "huge", idx_bytes(kIdxImages, {huge, huge, huge}, ramp(60)));
  EXPECT_CONTAINS(fault(folder / "huge"), "4294967295 entries, more than 1000000");
  write_plain(folder / "gigabytes", idx_bytes(kIdxImages, {1000, 1000, 1000}, ramp(60)));
  EXPECT_CONTAINS(fault(folder / "gigabytes"), "more than a file of 76 bytes can hold");
  write_plain(folder / "empty", idx_bytes(kIdxImages, {0, 28, 28}, {}));
  EXPECT_CONTAINS(fault(folder / "empty"), "size 0");
}

TEST(Idx, MuchCompressedFilesAreRead) {
  const TempFolder folder;
  write_gzip(folder / "zeros", idx_bytes(kIdxImages, {1000, 100, 100}, Bytes(10'000'000, 0)));
  EXPECT_LT(std::filesystem::file_size(folder / "zeros"), 10'500u);
  EXPECT_EQ(read_idx(folder / "zeros", kIdxImages).bytes, Bytes(10'000'000, 0));
}

TEST(Idx, MissingFileAndFolder) {
  const TempFolder folder;
  EXPECT_CONTAINS(fault(folder / "nothing"), "No such file");
  EXPECT_CONTAINS(fault(folder.path()), "folder");
}

}  // namespace
}  // namespace ddptrain
