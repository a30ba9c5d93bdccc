#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

namespace ddptrain {

/// A regular file in memory, read-only, mapped: pages are read when they are touched and shared by the ranks of a host.
/// On a file system without mappings, each rank reads the file into its memory. The file must not shrink meanwhile.
class MappedFile {
 public:
  /// UsageError, naming the file, if it is missing, not a regular file, empty, or cannot be read.
  explicit MappedFile(const std::filesystem::path& path);

  const std::uint8_t* data() const { return data_.get(); }
  std::size_t size() const { return data_.get_deleter().bytes; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data()), size()}; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(const std::uint8_t* data) const;
  };
  std::unique_ptr<const std::uint8_t, Unmap> data_;
};

}  // namespace ddptrain
