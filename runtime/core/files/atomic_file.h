#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/core/files/descriptor.h"

namespace ddptrain {

/// Writes a file that appears under its name complete or not at all, whatever happens: it is written under another name
/// (PATH.partial), synchronised, and renamed. One writer at a time, or each with a suffix of its own.
class AtomicFile {
 public:
  /// UsageError if the file cannot be created.
  explicit AtomicFile(std::filesystem::path path, const std::string& suffix = ".partial");
  /// Without commit(), what was under the name stays as it was.
  ~AtomicFile();

  /// Error, naming the file, if the disk does not take it; so does commit().
  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Returns when the file would survive a crash of the machine. The last call.
  void commit();

 private:
  std::filesystem::path path_;
  std::filesystem::path partial_;
  Descriptor descriptor_;  ///< -1 after commit().
};

/// Writes a whole file, through AtomicFile unless `path` is a link, a device or a pipe, or its folder takes no new
/// file. Error, naming the file, if the disk does not take it.
void write_file(const std::filesystem::path& path, std::string_view text);

/// So that new and removed entries of a folder are on the disk. Error if that fails.
void sync_folder(const std::filesystem::path& folder);

}  // namespace ddptrain
