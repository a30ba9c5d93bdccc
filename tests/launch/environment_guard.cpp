// For program_test.cpp, with LD_PRELOAD: reports changes that the program itself (not a library) makes to its
// environment while it has more than one thread.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace {

bool is_program(const void* caller) {
  Dl_info info{};
  if (dladdr(caller, &info) == 0) return false;
  std::error_code error;
  return std::filesystem::equivalent(info.dli_fname, "/proc/self/exe", error);
}

void check(const char* call, const char* name, const void* caller) {
  if (!is_program(caller)) return;
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  const auto threads = std::distance(begin(tasks), end(tasks));
  if (threads > 1) std::fprintf(stderr, "environment_guard: %s(%s) with %td threads\n", call, name, threads);
}

}  // namespace

extern "C" int setenv(const char* name, const char* value, int overwrite) {
  static const auto real = reinterpret_cast<int (*)(const char*, const char*, int)>(dlsym(RTLD_NEXT, "setenv"));
  check("setenv", name, __builtin_return_address(0));
  return real(name, value, overwrite);
}

extern "C" int unsetenv(const char* name) {
  static const auto real = reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_NEXT, "unsetenv"));
  check("unsetenv", name, __builtin_return_address(0));
  return real(name);
}
