#include "runtime/core/files/mapped_file.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace {

/// File systems differ in the mappings of files that they refuse. Bits: 1 shared, 2 private.
thread_local int refused_mappings = 0;

}  // namespace

#ifdef __SANITIZE_THREAD__  // it calls mmap() before it can run instrumented code
constexpr bool kCanRefuse = false;
#else
constexpr bool kCanRefuse = true;

/// In place of the system's.
extern "C" void* mmap(void* address, size_t bytes, int protection, int flags, int file, off_t offset) noexcept {
  static const auto real = reinterpret_cast<decltype(&mmap)>(dlsym(RTLD_NEXT, "mmap"));
  if (file >= 0 && (flags & refused_mappings & (MAP_SHARED | MAP_PRIVATE)) != 0) {
    errno = ENODEV;
    return MAP_FAILED;
  }
  return real(address, bytes, protection, flags, file, offset);
}
#endif

namespace ddptrain {
namespace {

std::string text_of(const std::filesystem::path& path, int refused) {
  refused_mappings = refused;
  const MappedFile file(path);
  refused_mappings = 0;
  return std::string(file.text());
}

TEST(MappedFile, ReadsWhatCannotBeMapped) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "mapped_file";
  const std::string content(300'001, 'x');
  std::ofstream(path) << content << "end";
  EXPECT_EQ(text_of(path, 0), content + "end");
  if (kCanRefuse) {
    EXPECT_EQ(text_of(path, MAP_SHARED), content + "end");
    EXPECT_EQ(text_of(path, MAP_SHARED | MAP_PRIVATE), content + "end");
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ddptrain
