#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/process/cores.h"
#include "runtime/train/results/baseline.h"

namespace ddptrain {

/// The cores of the job: those on which its ranks may run. Tells which part of them other programs take. Hosts that one
/// machine emulates share its cores.
class CoreShare {
 public:
  static constexpr double kDisturbed = 0.05;  ///< From this share of the cores, or of a rank's time, on.

  /// Every rank computes with `threads` threads. Begins to count. Collective.
  CoreShare(const World& world, int threads);

  /// How the job's own threads are more than its cores, such as "4 threads share 2 cores". Empty: they are not.
  const std::string& crowd() const { return crowd_; }
  struct Taken {
    double share = 0.0;    ///< Of the cores, by other programs since this object began: 0 to 1.
    double seconds = 0.0;  ///< Since then.
    bool lacking = false;  ///< Other programs and the ranks together want more cores than there are.

    std::string text() const;  ///< "other programs took 52% of the cores"
  };
  /// On the machine where it is most. Nothing if one hides what its cores do. Collective.
  std::optional<Taken> taken() { return taken_until(read()); }
  /// why_disturbed() for times that were measured since this object began, on the thread that made it. Waits of less
  /// than a millisecond in all do not count. Collective.
  Disturbance disturbance();

 private:
  struct Machine {
    std::set<int> cores;
    double threads = 0.0;
  };
  struct Reading {
    double seconds = 0.0;       ///< Of a clock.
    double busy_seconds = 0.0;  ///< The machine's cores together; NaN: hidden.
    double own_seconds = 0.0;   ///< CPU time of this rank.
    double waited = 0.0;        ///< Seconds: see CoreWait.
  };
  std::vector<Reading> read();
  std::optional<Taken> taken_until(const std::vector<Reading>& now) const;

  const World& world_;
  std::vector<int> machine_of_;  ///< By rank: an index in machines_.
  std::vector<Machine> machines_;
  std::string crowd_;
  CoreWait wait_;
  std::vector<Reading> begin_;  ///< Of each rank.
};

/// The reason is the crowd, or other programs that took cores which the ranks needed. `rank` waited longest for a core:
/// `wait` of its time. `taken` counts from half a second on.
Disturbance why_disturbed(const std::string& crowd, const std::optional<CoreShare::Taken>& taken, double wait,
                          std::size_t rank);

}  // namespace ddptrain
