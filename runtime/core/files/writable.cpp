#include "runtime/core/files/writable.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// A pipe is not opened for the check: that would wait for its reader, and closing it would end the reader.
bool can_be_written(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_fifo(path, ignored)) return ::access(path.c_str(), W_OK) == 0;
  return static_cast<bool>(std::ofstream(path, std::ios::app));
}

}  // namespace

void require_writable(const std::string& flag, const std::string& path) {
  if (path == "-") usage_error("{} -: give the name of a file; standard output has the tables", flag);
  std::error_code ignored;
  const bool is_new = std::filesystem::symlink_status(path, ignored).type() == std::filesystem::file_type::not_found;
  if (can_be_written(path)) {
    if (is_new) std::filesystem::remove(path, ignored);
    return;
  }
  usage_error("{} {}: the file cannot be written ({}). Give a path in a folder that exists and that you may write to.",
              flag, path, std::generic_category().message(errno));
}

void require_writable_folder(const std::string& flag, const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(path, error);
  const fs::path probe = fs::path(path) / fmt::format(".{}.probe", ::getpid());
  if (!error && !std::ofstream(probe)) error = {errno, std::generic_category()};
  if (error) {
    usage_error("{} {}: the folder cannot be made or written to ({}). Give one that you may write to.", flag, path,
                error.message());
  }
  fs::remove(probe, error);
}

void require_output_written() {
  const bool failed_before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) != 0) {
    fail("writing to standard output failed: {}", std::generic_category().message(errno));
  }
  if (failed_before) fail("writing to standard output failed");
}

}  // namespace ddptrain
