#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "launch/app/flags/options.h"
#include "launch/app/job/launchers.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/core/process/watch.h"
#include "runtime/diagnostics/nccl_log_capture.h"
#include "runtime/diagnostics/watchdog.h"

namespace ddptrain {

/// Runs before MPI starts, while this process has one thread: changes the environment, which other threads may read at
/// any time, and then starts the watchdog, which reads the environment only when it ends this process. CUDA starts
/// after MPI_Init has returned, because MPI_Init calls setenv(). Before glibc 2.41 setenv() frees the array of
/// variables that CUDA's getenv() may be reading in another thread. To be destroyed after MPI's end.
struct EarlyStart {
  std::map<std::string, std::string> nccl_settings;  ///< The user's NCCL_* variables.
  std::unique_ptr<NcclLogCapture> nccl_log;          ///< On rank 0, if NCCL may be used.
  int visible_gpus = 0;                              ///< Number of GPUs that this process saw at first.
  std::optional<int> gpu;                            ///< The only GPU that it still sees.
  Launch launch;
  std::unique_ptr<Watchdog> watchdog;       ///< Null: not started.
  std::unique_ptr<SignalRequests> signals;  ///< Null except for training, which alone heeds them.
};

/// `watch`: read by the watchdog.
EarlyStart start_early(const Options& options, std::shared_ptr<Watch> watch);

/// The local rank by the launcher (Open MPI, PMIx, Hydra, PALS, Flux, Slurm). 0 without a launcher; nothing if the
/// launcher does not give it.
std::optional<int> launched_local_rank();

}  // namespace ddptrain
