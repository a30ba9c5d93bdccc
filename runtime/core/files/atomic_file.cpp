#include "runtime/core/files/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

void require(bool done, const std::filesystem::path& path, const char* what) {
  if (!done) fail("{}: cannot be {}: {}", path.string(), what, std::strerror(errno));
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path, const std::string& suffix)
    : path_(std::move(path)), partial_(path_.string() + suffix) {
  unlink(partial_.c_str());  // of a run that was killed; a link is not followed
  descriptor_ = Descriptor(open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!descriptor_) usage_error("{}: cannot be created: {}", path_.string(), std::strerror(errno));
}

AtomicFile::~AtomicFile() {
  if (descriptor_) unlink(partial_.c_str());
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  constexpr std::size_t kMost = std::size_t{1} << 30;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(descriptor_.get(), next, std::min(bytes, kMost));
    if (done < 0 && errno == EINTR) continue;
    require(done > 0, path_, "written");
    next += done;
    bytes -= static_cast<std::size_t>(done);
  }
}

void AtomicFile::commit() {
  require(fsync(descriptor_.get()) == 0, path_, "synchronised");
  require(std::rename(partial_.c_str(), path_.c_str()) == 0, path_, "put in place");
  descriptor_ = Descriptor();
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_type type = fs::symlink_status(path, ignored).type();
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  if ((type == fs::file_type::regular || type == fs::file_type::not_found) && access(folder.c_str(), W_OK) == 0) {
    AtomicFile file(path);
    file.write(text);
    file.commit();
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  require(static_cast<bool>(file), path, "written");
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  require(static_cast<bool>(descriptor), folder, "opened");
  const bool done = fsync(descriptor.get()) == 0 || errno == EINVAL;  // some file systems have no such thing
  require(done, folder, "synchronised");
}

}  // namespace ddptrain
