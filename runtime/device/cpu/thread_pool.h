#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace ddptrain {

/// A fixed number of threads that work on one loop at a time; the calling thread is number 0.
class ThreadPool {
 public:
  /// Runs over the elements [begin, end) on thread `thread`; must not throw.
  using Work = std::function<void(std::int64_t begin, std::int64_t end, int thread)>;

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }
  /// Cuts [0, count) into one contiguous range per thread, always in the same way, and returns when all are done.
  void run(std::int64_t count, const Work& work);

 private:
  void serve(int thread);
  void run_range(int thread) const;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  const Work* work_ = nullptr;
  std::int64_t count_ = 0;
  std::uint64_t generation_ = 0;
  int running_ = 0;
  bool stopping_ = false;
};

}  // namespace ddptrain
