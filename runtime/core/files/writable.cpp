#include "runtime/core/files/writable.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

/// The end of a pipe into which programs write. Opening it otherwise would wait for a reader.
Descriptor writing_end(const std::string& flag, const std::string& path) {
  Descriptor pipe(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  if (!pipe && errno == ENXIO) {
    usage_error("{} {}: no program reads this pipe, and writing would wait for one. Start its reader first.", flag,
                path);
  }
  return pipe;
}

}  // namespace

Descriptor require_writable(const std::string& flag, const std::string& path) {
  if (path == "-") usage_error("{} -: give the name of a file; standard output has the tables", flag);
  std::error_code ignored;
  if (fs::is_fifo(path, ignored)) {
    if (Descriptor pipe = writing_end(flag, path)) return pipe;
  } else {
    const bool is_new = fs::symlink_status(path, ignored).type() == fs::file_type::not_found;
    if (std::ofstream(path, std::ios::app)) {
      if (is_new) fs::remove(path, ignored);
      return Descriptor();
    }
  }
  usage_error("{} {}: the file cannot be written ({}). Give a path in a folder that exists and that you may write to.",
              flag, path, std::generic_category().message(errno));
}

void require_regular(const std::string& flag, const std::string& path) {
  std::error_code missing;
  const fs::file_status status = fs::status(path, missing);
  if (!fs::exists(status) || fs::is_regular_file(status) || fs::weakly_canonical(path, missing) == "/dev/null") return;
  usage_error("{} {}: is {}, and a regular file is needed. Give the name of one.", flag, path,
              fs::is_directory(status) ? "a folder"
              : fs::is_fifo(status)    ? "a pipe"
                                       : "a device or a socket");
}

void require_writable_folder(const std::string& flag, const std::string& path) {
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
