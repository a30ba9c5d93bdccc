#include "runtime/core/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/core/error.h"
#include "runtime/core/files/descriptor.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// A copy of the file in anonymous memory, which munmap() frees.
void* read_whole(int file, std::size_t size, const std::string& name) {
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    usage_error("{}: cannot be mapped, and its {} do not fit into memory", name, size_text(size));
  }
  std::size_t done = 0;
  while (done < size) {
    const ssize_t got = pread(file, static_cast<char*>(memory) + done, size - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const std::string reason = got == 0 ? "it ends early" : std::strerror(errno);
      munmap(memory, size);
      usage_error("{}: cannot be read: {}", name, reason);
    }
    done += static_cast<std::size_t>(got);
  }
  return memory;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const std::string name = path.string();
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) usage_error("{}: cannot be opened: {}", name, std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) usage_error("{}: cannot be read: {}", name, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) usage_error("{}: is a folder; a file is needed here", name);
  if (!S_ISREG(status.st_mode)) usage_error("{}: is not a regular file", name);
  if (status.st_size == 0) usage_error("{}: is empty", name);
  const auto size = static_cast<std::size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  // Some file systems (FUSE with direct access, 9p) have no shared mappings, or no mappings at all.
  if (address == MAP_FAILED) address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) address = read_whole(file.get(), size, name);
  data_ = {static_cast<const std::uint8_t*>(address), Unmap{size}};
}

void MappedFile::Unmap::operator()(const std::uint8_t* data) const { munmap(const_cast<std::uint8_t*>(data), bytes); }

}  // namespace ddptrain
