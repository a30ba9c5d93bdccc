#pragma once

#include <filesystem>
#include <optional>
#include <set>

namespace ddptrain {

/// How long the calling thread waited for a core: the time in which it could have run while the core ran something
/// else, on this machine or, in a virtual machine, on its host.
class CoreWait {
 public:
  CoreWait();  ///< Begins to count.
  ~CoreWait();
  CoreWait(const CoreWait&) = delete;
  CoreWait& operator=(const CoreWait&) = delete;

  /// Since the beginning. Between two calls in which the thread never slept, all time without CPU time counts;
  /// otherwise what the kernel counts of it (/proc/<pid>/task/<tid>/schedstat, nothing if it is hidden). It takes about
  /// 3 us.
  double seconds();

 private:
  struct Reading {
    double clock = 0.0;
    double cpu = 0.0;
    double waited = 0.0;  ///< As the kernel counts.
    long sleeps = 0;
  };
  Reading read() const;

  int file_;
  Reading last_;
  double seconds_ = 0.0;
};

/// The cores on which the calling thread may run.
std::set<int> allowed_cores();

/// How many cores' time the cgroups (version 1 or 2) of this process may take. Nothing: no limit. `root`: where /proc
/// and /sys are.
std::optional<double> core_limit(const std::filesystem::path& root = "/");

/// Cores that this process can use at once: those of allowed_cores(), as hyperthreads share one, or core_limit()
/// rounded up, if that is less. At least 1.
int usable_cores(const std::filesystem::path& root = "/");

/// For how long these cores have run anything since the machine started, all programs and the hypervisor's others
/// together. Nothing if /proc/stat does not tell.
std::optional<double> busy_seconds(const std::set<int>& cores, const std::filesystem::path& root = "/");

/// CPU time of this process, all threads.
double process_cpu_seconds();

}  // namespace ddptrain
