#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace ddptrain {

/// Calls `work` in a thread of its own, each time `interval` has passed, until the object is destroyed. The destructor
/// waits for a call that runs. Make it the last member of the object whose members `work` uses.
class Repeated {
 public:
  Repeated(std::chrono::milliseconds interval, std::function<void()> work)
      : thread_([interval, work = std::move(work)](const std::stop_token& stop) {
          std::mutex mutex;
          std::condition_variable_any wake;
          std::unique_lock lock(mutex);
          while (!wake.wait_for(lock, stop, interval, [&] { return stop.stop_requested(); })) work();
        }) {}

  /// Waits for a call that runs. There are no more calls.
  void stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::jthread thread_;
};

}  // namespace ddptrain
