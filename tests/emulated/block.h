#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ddptrain::emulated {

/// Runs a thread block of a CUDA kernel on the CPU. Its threads are fibers that give way where
/// they wait for others. The warps run in a random order, some far ahead of others, so that a barrier that is missing
/// changes the result.
class Block {
 public:
  struct Settings {
    int threads = 0;
    unsigned seed = 0;              ///< Of the order of the warps.
    bool work_late = false;         ///< Whether asynchronous work is done when it is waited for, or when started.
    char* shared_memory = nullptr;  ///< Aligned to 1024 bytes.
    /// What the kernel before writes. It is written when a thread first waits for that kernel. May be null.
    std::function<void()> predecessor = nullptr;
  };
  explicit Block(const Settings& settings);

  /// Throws std::runtime_error: what the kernel did wrong, or that all threads wait.
  void run(const std::function<void()>& kernel);

  /// Of the thread that runs.
  static Block& current();
  int thread() const { return running_; }
  char* shared_memory() const { return settings_.shared_memory; }
  /// Ends the kernel with an error.
  [[noreturn]] void fail(const std::string& what);

  void await_predecessor() {
    if (const auto write = std::exchange(settings_.predecessor, nullptr)) write();
  }
  /// Returns when `threads` threads have called it with the same `place`.
  void meet(int place, int threads);
  void meet_warp();
  void meet_all() { meet(kBlockMeeting, settings_.threads); }
  /// What each lane of the warp gave.
  template <class T>
  std::vector<T> exchange(const T& mine);

  /// Barriers in shared memory (mbarrier), by address.
  void init_barrier(const void* barrier, int arrivals);
  void arrive(const void* barrier, long bytes);
  void receive(const void* barrier, long bytes);
  void await_phase(const void* barrier, int parity);

  /// Asynchronous work of the running thread, in groups that end in their order.
  void start_work(std::function<void()> work);
  void end_group();
  void await_groups(std::size_t pending);

 private:
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack;
    std::function<bool()> ready;  ///< Null while it may run.
    std::deque<std::vector<std::function<void()>>> groups;
    std::vector<std::function<void()>> open_group;
    bool ended = false;
  };
  struct Meeting {
    int count = 0;
    long generation = 0;
  };
  struct Barrier {
    int arrivals = 0, arrived = 0, phase = 0;
    long bytes = 0;

    void settle();
  };

  static void enter();
  void start_fibers();
  bool run_warp(int warp, int rounds);
  void wait_until(std::function<bool()> ready);
  Fiber& self() { return *fibers_[static_cast<std::size_t>(running_)]; }

  static constexpr std::size_t kStackBytes = 1 << 17;
  static constexpr int kWarp = 32, kBlockMeeting = 1 << 20, kWarpMeeting = 1 << 28;
  Settings settings_;
  std::mt19937 random_;
  std::function<void()> kernel_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_{};
  int running_ = 0, ended_ = 0;
  std::string error_;
  std::map<int, Meeting> meetings_;
  std::map<const void*, Barrier> barriers_;
  std::vector<std::vector<char>> exchanged_;
};

template <class T>
std::vector<T> Block::exchange(const T& mine) {
  const auto bytes = reinterpret_cast<const char*>(&mine);
  exchanged_[static_cast<std::size_t>(running_)].assign(bytes, bytes + sizeof(T));
  meet_warp();
  std::vector<T> all(kWarp);
  const std::size_t first = static_cast<std::size_t>(running_ / kWarp * kWarp);
  for (std::size_t lane = 0; lane < kWarp; ++lane) {
    std::copy_n(exchanged_[first + lane].data(), sizeof(T), reinterpret_cast<char*>(&all[lane]));
  }
  meet_warp();
  return all;
}

}  // namespace ddptrain::emulated
