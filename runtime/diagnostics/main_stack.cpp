#include "runtime/diagnostics/main_stack.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <thread>

namespace ddptrain {
namespace {

/// Variables that the signal handler uses.
struct Snapshot {
  std::atomic<bool> wanted = false;  ///< False as soon as the frames are there.
  int count = 0;
  std::array<void*, 64> frames;
};
Snapshot snapshot;

int stack_signal() { return SIGRTMIN + 5; }

void note_stack(int) {
  if (!snapshot.wanted) return;
  const int error = errno;
  snapshot.count = backtrace(snapshot.frames.data(), static_cast<int>(snapshot.frames.size()));
  snapshot.wanted = false;
  errno = error;
}

/// The program itself is known by what it was called as.
std::string file_of(const Dl_info& info) {
  const std::string name = info.dli_fname;
  std::error_code error;
  return name.rfind('/', 0) == 0 ? name : std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string frame_text(void* address) {
  Dl_info info{};
  if (dladdr(address, &info) == 0) return fmt::format("{}", address);
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  if (info.dli_sname == nullptr) {
    return fmt::format("{}(+{:#x})", file_of(info), at - reinterpret_cast<std::uintptr_t>(info.dli_fbase));
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status),
                                                     std::free);
  return fmt::format("{}({}+{:#x})", file_of(info), plain ? plain.get() : info.dli_sname,
                     at - reinterpret_cast<std::uintptr_t>(info.dli_saddr));
}

}  // namespace

MainStack::MainStack() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what the handler must not load
  struct sigaction action {};
  action.sa_handler = note_stack;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

MainStack::~MainStack() { signal(stack_signal(), SIG_IGN); }

std::vector<std::string> MainStack::take() const {
  snapshot.wanted = true;
  if (syscall(SYS_tgkill, getpid(), getpid(), stack_signal()) != 0) return {};
  for (int i = 0; i < 100 && snapshot.wanted; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (snapshot.wanted.exchange(false)) return {};
  std::vector<std::string> frames;
  for (int i = 2; i < snapshot.count; ++i) {  // after the handler and the frame of the signal
    frames.push_back(frame_text(snapshot.frames[static_cast<std::size_t>(i)]));
  }
  return frames;
}

}  // namespace ddptrain
