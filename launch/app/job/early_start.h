#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "launch/app/flags/options.h"
#include "runtime/core/process/watch.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/diagnostics/watchdog.h"

namespace ddptrain {

/// Runs before MPI starts, while this process has one thread: changes the environment, which other threads may read at
/// any time, and then starts the watchdog, which reads the environment only when it ends this process. CUDA starts
/// after MPI_Init has returned, because MPI_Init calls setenv(). Before glibc 2.41 setenv() frees the array of
/// variables that CUDA's getenv() may be reading in another thread. To be destroyed after MPI's end.
struct EarlyStart {
  std::map<std::string, std::string> nccl_settings;  ///< The user's NCCL_* variables.
  std::unique_ptr<NcclLogCapture> nccl_log;          ///< On rank 0 where NCCL may be used.
  int visible_gpus = 0;                              ///< GPUs that this process saw.
  std::optional<int> gpu;                            ///< The only one of them that it still sees.
  std::shared_ptr<Watch> watch = std::make_shared<Watch>();
  std::unique_ptr<Watchdog> watchdog;  ///< Of `watch`; null: none was started.
};

EarlyStart start_early(const Options& options);

/// The rank on this host as the launcher (Open MPI, PMIx, Hydra, PALS, Flux, Slurm) numbers it: 0 without a launcher,
/// nothing where a launcher does not tell.
std::optional<int> launched_local_rank();

}  // namespace ddptrain
