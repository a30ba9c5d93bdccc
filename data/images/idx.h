#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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

/// Gets the dimensions before a value is decompressed. Throws to refuse the file.
using CheckDims = std::function<void(const std::vector<std::uint32_t>& dims)>;

/// Reads a file of unsigned bytes, plain or gzip; the content tells which. UsageError, naming the file, if it cannot be
/// read, has another magic number, is damaged, or has another number of bytes than its header says. A small gzip file
/// can hold gigabytes: use `check_dims` to limit the size.
IdxFile read_idx(const std::filesystem::path& path, std::uint32_t expected_magic, const CheckDims& check_dims);

}  // namespace ddptrain
