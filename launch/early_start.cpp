#include "launch/early_start.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "runtime/device/device.h"
#include "runtime/topology/gpu_selection.h"

namespace ddptrain {
namespace {

std::optional<int> first_number(std::initializer_list<const char*> variables) {
  for (const char* name : variables) {
    const char* text = std::getenv(name);
    if (text != nullptr && *text >= '0' && *text <= '9') return std::atoi(text);
  }
  return std::nullopt;
}

std::optional<int> launched_rank() {
  return first_number({"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"});
}

}  // namespace

std::optional<int> launched_local_rank() {
  const auto local_rank = first_number({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"});
  return local_rank || launched_rank() ? local_rank : 0;
}

namespace {

EarlyStart start_gpu_early(const std::string& device) {
  EarlyStart early;
  early.nccl_settings = nccl_environment();
  if (!built_with_cuda() || device == "cpu") return early;
  early.visible_gpus = visible_gpus();
  if (early.visible_gpus == 0) return early;
  if (launched_rank().value_or(0) == 0) early.nccl_log = std::make_unique<NcclLogCapture>();
  const auto local_rank = launched_local_rank();
  if (!local_rank || *local_rank >= early.visible_gpus) return early;
  show_only_gpu(*local_rank);
  early.gpu = *local_rank;
  early.cuda = std::async(std::launch::async, start_cuda);
  return early;
}

}  // namespace

EarlyStart start_early(const std::string& device, const WatchdogOptions& watchdog) {
  EarlyStart early = start_gpu_early(device);
  early.watchdog = std::make_unique<Watchdog>("ddptrain", launched_rank().value_or(-1), watchdog, early.watch);
  return early;
}

}  // namespace ddptrain
