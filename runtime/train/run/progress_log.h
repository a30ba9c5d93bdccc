#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/core/process/watch.h"

namespace ddptrain {

/// Logs the progress of a run while the object lives: first after `interval`, then whenever a tenth more time has
/// passed, but at least once in six intervals. `watch` outlives it. It uses a thread that calls neither MPI nor a
/// device.
class ProgressLog {
 public:
  struct Plan {
    std::int64_t first = 0;       ///< Steps that were done before this run (resume).
    std::int64_t steps = 0;       ///< All steps of the run.
    double units_per_step = 0.0;  ///< On all ranks together.
    std::string unit;             ///< Such as images.
  };

  ProgressLog(const Watch& watch, Plan plan, std::chrono::milliseconds interval);
  ~ProgressLog();
  ProgressLog(const ProgressLog&) = delete;
  ProgressLog& operator=(const ProgressLog&) = delete;

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void write();

  const Watch& watch_;
  const Plan plan_;
  const std::chrono::milliseconds interval_;
  std::int64_t step_;                      ///< At the last line.
  Clock::time_point then_ = Clock::now();  ///< The time of the last line.
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace ddptrain
