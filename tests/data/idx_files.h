#pragma once

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "tests/support/says.h"

namespace ddptrain::tests {

/// A folder of its own for the running test, removed at its end.
class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / unique_name()) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  static std::string unique_name() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::string("ddptrain-") + test->test_suite_name() + "-" + test->name() + "-" + std::to_string(getpid());
  }

  std::filesystem::path path_;
};

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
