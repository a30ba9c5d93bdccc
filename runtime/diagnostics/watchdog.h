#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/process/watch.h"

namespace ddptrain {

/// Exit code of a rank that has waited too long for others, and of those that it asks to end.
inline constexpr int kTimeoutExitCode = 76;

struct WatchdogOptions {
  double timeout_seconds = 600.0;  ///< Longest wait; three times as long until the first step has ended. 0: no limit.
  std::string flight;         ///< Folder of flight records; empty: one of the job in the system's temporary folder.
  double end_seconds = 20.0;  ///< Without progress in steps after a signal that asks for the end (SignalRequests).
};

/// The ranks of a job, for their watchdogs. Lists are in the order of ranks.
struct WatchedJob {
  std::uint64_t key = 0;               ///< Of the job: watchdogs of other jobs are not heard.
  int rank = 0;                        ///< This one.
  std::vector<std::string> addresses;  ///< Watchdog::addresses()
  std::vector<std::string> hosts;
  std::vector<std::string> places;   ///< In the job, for messages; may be empty.
  std::vector<std::int64_t> stages;  ///< Pipeline stages. The ranks of a stage call the same collectives.
};

/// Ends this process if it has waited too long for other ranks, if it does not heed a signal that asks for the
/// end, or if a health check of the watch fails. A thread that calls neither MPI nor a device, so that nothing that
/// hangs there holds it up. Before the end it asks the watchdogs of the other ranks, over UDP, how far they are; one
/// rank says in one line which ranks are missing, the surest first; every rank that answers writes a flight record
/// (docs/reference/flight-record.md) and ends as well, with kTimeoutExitCode and without MPI. Time in which the whole
/// process was stopped (SIGSTOP) does not count.
class Watchdog {
 public:
  /// `name` of the program; `rank`: what is known of it before MPI starts, or -1. `watch`: what the process tells.
  Watchdog(std::string name, int rank, const WatchdogOptions& options, std::shared_ptr<Watch> watch);
  /// Ends the thread.
  ~Watchdog();

  /// Ranks exchange the addresses of their watchdogs; from now on each knows how far the others are. `place`: of this
  /// rank in the job, for messages; may be empty. `stage`: the rank's pipeline stage; the numbers of collectives are
  /// compared among the ranks of a stage. Collective.
  void meet(const World& world, const std::string& place = "", int stage = 0);
  /// The same, once the ranks have exchanged this.
  void meet(const WatchedJob& job);
  /// Where this watchdog is reached.
  std::string addresses() const;

 private:
  class Guard;
  std::unique_ptr<Guard> guard_;
};

}  // namespace ddptrain
