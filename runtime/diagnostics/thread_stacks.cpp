#include "runtime/diagnostics/thread_stacks.h"

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
#include <fstream>
#include <memory>
#include <thread>

namespace ddptrain {
namespace {

/// What a signal handler can reach: the stack of one thread.
struct Snapshot {
  std::atomic<int> wanted = 0;  ///< Thread id; 0: none, or taken.
  int count = 0;
  std::array<void*, 64> frames;
};
Snapshot snapshot;

int stack_signal() { return SIGRTMIN + 5; }

void note_stack(int) {
  const int error = errno;
  if (snapshot.wanted.load(std::memory_order_acquire) == static_cast<int>(syscall(SYS_gettid))) {
    snapshot.count = backtrace(snapshot.frames.data(), static_cast<int>(snapshot.frames.size()));
    snapshot.wanted.store(0, std::memory_order_release);
  }
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

void read_task(const std::filesystem::path& task, ThreadStack& stack) {
  std::ifstream(task / "comm") >> stack.name;
  std::string line;
  std::ifstream stat(task / "stat");
  if (std::getline(stat, line) && line.rfind(')') + 2 < line.size()) stack.state = line[line.rfind(')') + 2];
}

/// Threads of libraries often block all signals; they would be waited for in vain.
bool blocks_signal(const std::filesystem::path& task) {
  std::ifstream status(task / "status");
  for (std::string word; status >> word;) {
    std::uint64_t blocked = 0;
    if (word == "SigBlk:" && status >> std::hex >> blocked) return (blocked >> (stack_signal() - 1) & 1) != 0;
  }
  return false;
}

bool asked(int thread) {
  using namespace std::chrono_literals;
  snapshot.wanted.store(thread, std::memory_order_release);
  if (syscall(SYS_tgkill, getpid(), thread, stack_signal()) != 0) return false;
  for (int i = 0; i < 100; ++i) {
    if (snapshot.wanted.load(std::memory_order_acquire) == 0) return true;
    std::this_thread::sleep_for(1ms);
  }
  int expected = thread;
  return !snapshot.wanted.compare_exchange_strong(expected, 0);
}

}  // namespace

ThreadStacks::ThreadStacks() {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what the handler must not load
  struct sigaction action {};
  action.sa_handler = note_stack;
  action.sa_flags = SA_RESTART;
  sigaction(stack_signal(), &action, nullptr);
}

ThreadStacks::~ThreadStacks() { signal(stack_signal(), SIG_IGN); }

std::vector<ThreadStack> ThreadStacks::take() const {
  std::vector<ThreadStack> stacks;
  std::error_code error;
  const int own = static_cast<int>(syscall(SYS_gettid));
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    ThreadStack stack;
    stack.id = std::atoi(task.path().filename().c_str());
    if (stack.id == own) continue;
    read_task(task.path(), stack);
    if (!blocks_signal(task.path()) && asked(stack.id)) {
      for (int i = 2; i < snapshot.count; ++i) {  // after the handler and the frame of the signal
        stack.frames.push_back(frame_text(snapshot.frames[static_cast<std::size_t>(i)]));
      }
    }
    stacks.push_back(std::move(stack));
  }
  return stacks;
}

}  // namespace ddptrain
