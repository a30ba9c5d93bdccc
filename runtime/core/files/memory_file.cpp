#include "runtime/core/files/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

#include "runtime/core/error.h"

namespace ddptrain {

MemoryFile::MemoryFile(const std::string& name) : file_(memfd_create(name.c_str(), MFD_CLOEXEC)) {
  if (!file_)
    file_ = Descriptor(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));  // hardened hosts refuse the first
  if (!file_) fail("neither memory nor /tmp has a file without a name: {}", std::strerror(errno));
}

std::string MemoryFile::path() const { return fmt::format("/proc/self/fd/{}", file_.get()); }

std::string MemoryFile::text() const {
  std::ifstream file(path());
  return {std::istreambuf_iterator<char>(file), {}};
}

void MemoryFile::write(const std::string& text) const {
  std::ofstream file(path(), std::ios::trunc);
  file << text << std::flush;
  if (!file || lseek(file_.get(), 0, SEEK_SET) != 0)
    fail("{} bytes could not be written to a file in memory", text.size());
}

}  // namespace ddptrain
