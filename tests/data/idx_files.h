#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace ddptrain::tests {

using Bytes = std::vector<std::uint8_t>;

/// The content of an IDX file: header, then `values`.
inline Bytes idx_bytes(std::uint32_t magic, const std::vector<std::uint32_t>& dims, const Bytes& values) {
  Bytes out;
  const auto put = [&](std::uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(word >> shift));
  };
  put(magic);
  for (const std::uint32_t dim : dims) put(dim);
  out.insert(out.end(), values.begin(), values.end());
  return out;
}

inline void write_plain(const std::filesystem::path& path, const Bytes& content) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
}

inline void write_gzip(const std::filesystem::path& path, const Bytes& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
  gzclose(file);
}

inline Bytes read_all(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace ddptrain::tests
