#include "runtime/core/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

void require(bool done, const std::filesystem::path& path, const char* what) {
  if (!done) fail("{}: cannot be {}: {}", path.string(), what, std::strerror(errno));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), partial_(path_.string() + ".partial") {
  descriptor_ = open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) usage_error("{}: cannot be created: {}", path_.string(), std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(partial_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_, next, std::min(bytes, kMost));
    if (done < 0 && errno == EINTR) continue;
    require(done > 0, path_, "written");
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::commit() {
  require(fsync(descriptor_) == 0, path_, "synchronised");
  require(std::rename(partial_.c_str(), path_.c_str()) == 0, path_, "put in place");
  close(std::exchange(descriptor_, -1));
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
}

void sync_folder(const std::filesystem::path& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  require(descriptor >= 0, folder, "opened");
  const bool done = fsync(descriptor) == 0 || errno == EINVAL;  // some file systems have no such thing
  close(descriptor);
  require(done, folder, "synchronised");
}

}  // namespace ddptrain
