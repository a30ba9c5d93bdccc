#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace ddptrain::emulated {

/// Runs a thread block of a CUDA kernel on the CPU, or a cluster of them. Threads are fibers that give way where they
/// wait for others. The warps run in a random order, some far ahead and one far behind, so that a barrier that is
/// missing changes the result. Copies to shared memory that barriers count come at random times.
class Block {
 public:
  struct Settings {
    int threads = 0;                ///< Of a block.
    unsigned seed = 0;              ///< Of the order of the warps.
    bool work_late = false;         ///< Whether asynchronous work is done when it is waited for, or when started.
    char* shared_memory = nullptr;  ///< Aligned to 1024 bytes. Those of a cluster's blocks lie side by side.
    /// What the kernel before writes. It is written when a thread first waits for that kernel. May be null.
    std::function<void()> predecessor = nullptr;
    int blocks = 1;                ///< Of the cluster.
    std::size_t shared_bytes = 0;  ///< Of a block. A multiple of 1024 if there are several.
  };
  explicit Block(const Settings& settings);

  /// Throws std::runtime_error: what the kernel did wrong, or that all threads wait.
  void run(const std::function<void()>& kernel);

  /// Of the thread that runs.
  static Block& current();
  int thread() const { return running_ % settings_.threads; }
  int rank() const { return running_ / settings_.threads; }  ///< Of its block in the cluster.
  char* shared_memory() const { return shared_memory(rank()); }
  char* shared_memory(int block) const {
    return settings_.shared_memory + static_cast<std::size_t>(block) * settings_.shared_bytes;
  }
  /// What block `block` of the cluster has at the place of `address`, which is in this thread's block.
  char* there(int block, const void* address);
  /// Ends the kernel with an error.
  [[noreturn]] void fail(const std::string& what);

  void await_predecessor() {
    if (const auto write = std::exchange(settings_.predecessor, nullptr)) write();
  }
  /// Returns when `threads` threads of the block have called it with the same `place`.
  void meet(int place, int threads) { meet(rank(), place, threads, "threads of its block"); }
  void meet_warp() { meet(kOfAll, running_ / kWarp, kWarp, "its warp"); }
  void meet_all() { meet(kBlockMeeting, settings_.threads); }
  void meet_cluster() {
    arrive_at_cluster();
    await_cluster();
  }
  /// meet_cluster() in two steps.
  void arrive_at_cluster() {
    self().at_cluster = arrive(kOfAll, kClusterMeeting, settings_.blocks * settings_.threads);
  }
  void await_cluster();
  /// What each lane of the warp gave.
  template <class T>
  std::vector<T> exchange(const T& mine);

  /// Barriers in shared memory (mbarrier), by address.
  void init_barrier(const void* barrier, int arrivals);
  void arrive(const void* barrier, long bytes);
  void await_phase(const void* barrier, int parity);
  /// Does `copy` at some time, and then `barrier` gets its bytes. Both are in the memory of block `block`.
  void start_copy(int block, const void* barrier, long bytes, std::function<void()> copy);

  /// Copies from shared to global memory. The bytes are read when the running thread waits for that, and written when
  /// it waits for the end.
  void start_store(char* to, const char* from, std::size_t bytes) { self().stores.push_back({to, from, bytes, {}}); }
  void await_stores_read();
  void await_stores();

  /// The running thread writes to a row of 16 bytes of shared memory, which asynchronous work may read after its fence.
  void note_write(const char* row);
  void fence_writes();
  /// Fails unless all who wrote to the 16 bytes around `address` have fenced that.
  void require_fenced(const char* address) {
    if (unfenced_[row_of(address)] != 0) fail("asynchronous work reads what a thread wrote without a fence");
  }

  /// Fails if the four warps of a warpgroup have not called it with the same values in the same order.
  void require_same_in_warpgroup(std::uint64_t value);

  /// Asynchronous work of the running thread, in groups that end in their order.
  void start_work(std::function<void()> work);
  void end_group();
  void await_groups(std::size_t pending);

 private:
  struct Store {
    char* to;
    const char* from;
    std::size_t bytes;
    std::optional<std::vector<char>> read;
  };
  struct Meeting {
    int count = 0;
    long generation = 0;
  };
  /// A meeting at which a thread has arrived.
  struct Arrival {
    const Meeting* meeting = nullptr;
    long generation = 0;

    bool has_ended() const { return meeting->generation != generation; }
  };
  struct Fiber {
    ucontext_t context{};
    std::vector<char> stack;
    std::function<bool()> ready;  ///< Null while it may run.
    const char* awaits = "";
    std::deque<std::vector<std::function<void()>>> groups;
    std::vector<std::function<void()>> open_group;
    std::vector<Store> stores;          ///< Under way.
    Arrival at_cluster;                 ///< The last one.
    int compared = 0;                   ///< Calls of require_same_in_warpgroup().
    std::vector<std::size_t> unfenced;  ///< Rows of 16 bytes that it has written.
    bool ended = false;
  };
  struct Barrier {
    int arrivals = 0, arrived = 0, phase = 0;
    long bytes = 0;

    void settle();
  };
  struct Copy {
    const void* barrier;
    long bytes;
    std::function<void()> work;
    bool is_slow;  ///< It ends when all threads wait.
  };

  static void enter();
  void start_fibers();
  bool run_warp(int warp, int rounds);
  Arrival arrive(int block, int place, int threads);
  void meet(int block, int place, int threads, const char* whom);
  void wait_until(const char* what, std::function<bool()> ready);
  void give_way_at_times();
  Barrier& barrier_at(const void* address);
  bool end_copies(bool must_end_one);
  void end_copy(std::size_t index);
  void check_end();
  std::string describe_waits() const;
  std::size_t row_of(const char* address) const {
    return static_cast<std::size_t>(address - settings_.shared_memory) / 16;
  }
  bool has_started(int block) const { return started_blocks_[static_cast<std::size_t>(block)]; }
  bool has_ended(int block) const { return ended_of_block_[static_cast<std::size_t>(block)] == settings_.threads; }
  Fiber& self() { return *fibers_[static_cast<std::size_t>(running_)]; }

  static constexpr std::size_t kStackBytes = 1 << 17, kMostShared = 228 * 1024;
  static constexpr int kWarp = 32, kBlockMeeting = 1 << 20, kClusterMeeting = 1 << 28, kOfAll = -1;
  Settings settings_;
  std::mt19937 random_;
  std::function<void()> kernel_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  ucontext_t scheduler_{};
  int running_ = 0, ended_ = 0;
  int late_ = 0;  ///< Threads in give_way_at_times().
  std::string error_;
  std::vector<int> ended_of_block_;
  std::vector<bool> started_blocks_;
  std::map<std::pair<int, int>, Meeting> meetings_;  ///< By block, or kOfAll, and place.
  std::vector<Copy> copies_;                         ///< Under way.
  std::map<const void*, Barrier> barriers_;
  std::vector<std::vector<char>> exchanged_;
  std::map<std::pair<int, int>, std::uint64_t> of_warpgroup_;  ///< By warpgroup and call.
  std::vector<int> unfenced_;  ///< By row of 16 bytes of shared memory: writes without a fence.
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
