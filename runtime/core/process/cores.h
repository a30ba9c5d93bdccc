#pragma once

#include <filesystem>
#include <optional>
#include <set>

namespace ddptrain {

/// How long a thread waited for a core: the time in which it could have run while the core ran something else.
class CoreWait {
 public:
  CoreWait();  ///< Of the calling thread.
  ~CoreWait();
  CoreWait(const CoreWait&) = delete;
  CoreWait& operator=(const CoreWait&) = delete;

  /// Since the thread began. 0 if the kernel does not tell (no /proc/<pid>/task/<tid>/schedstat). Call it in the thread
  /// itself. It takes about 2 us.
  double seconds() const;

 private:
  int file_;
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
