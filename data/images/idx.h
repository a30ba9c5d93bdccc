#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace ddptrain {

/// An IDX file (the format of MNIST): a big-endian magic number, one 32-bit size per dimension, then the values.
struct IdxFile {
  std::vector<std::uint32_t> dims;
  std::vector<std::uint8_t> bytes;  ///< Row-major, the product of `dims` in all.
};

/// Magic number = element type (8: unsigned byte) * 256 + number of dimensions.
inline constexpr std::uint32_t kIdxLabels = 0x0801;
inline constexpr std::uint32_t kIdxImages = 0x0803;

/// Reads a file of labels or images, plain or gzip; the content tells which. UsageError, naming the file, if it cannot
/// be read, has another magic number, is damaged, or has another number of bytes than its header says. So that a small
/// gzip file does not take all memory, it has at most 1,000,000 entries, images of 1024 x 1024, and 4 GiB.
IdxFile read_idx(const std::filesystem::path& path, std::uint32_t expected_magic);

}  // namespace ddptrain
