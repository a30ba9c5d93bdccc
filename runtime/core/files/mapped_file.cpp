#include "runtime/core/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "runtime/core/error.h"
#include "runtime/core/files/descriptor.h"

namespace ddptrain {

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
  if (address == MAP_FAILED) usage_error("{}: cannot be mapped: {}", name, std::strerror(errno));
  data_ = {static_cast<const std::uint8_t*>(address), Unmap{size}};
}

void MappedFile::Unmap::operator()(const std::uint8_t* data) const { munmap(const_cast<std::uint8_t*>(data), bytes); }

}  // namespace ddptrain
