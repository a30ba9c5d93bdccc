#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace ddptrain {

/// A regular file in memory, read-only, mapped: pages are read when they are touched and shared by the ranks of a host.
/// The file must not shrink while it is mapped.
class MappedFile {
 public:
  /// UsageError, naming the file, if it is missing, not a regular file, empty, or cannot be read.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::uint8_t* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  const std::uint8_t* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ddptrain
