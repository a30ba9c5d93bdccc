#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/core/process/watch.h"

namespace ddptrain {

/// The log says now and then how far a run is, while this object lives: first after `interval`, then each time a tenth
/// more time has passed, but once in six intervals at least. A thread of its own writes, which calls neither MPI nor a
/// device.
class ProgressLog {
 public:
  struct Plan {
    std::int64_t first = 0;       ///< Steps before this run, of a resume.
    std::int64_t steps = 0;       ///< In all.
    double units_per_step = 0.0;  ///< Of all ranks.
    std::string unit;             ///< Such as images.
  };

  ProgressLog(std::shared_ptr<const Watch> watch, Plan plan, std::chrono::milliseconds interval);
  ~ProgressLog();
  ProgressLog(const ProgressLog&) = delete;
  ProgressLog& operator=(const ProgressLog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void write();

  const std::shared_ptr<const Watch> watch_;
  const Plan plan_;
  const std::chrono::milliseconds interval_;
  std::int64_t step_;  ///< At the line before ...
  Clock::time_point then_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ddptrain
