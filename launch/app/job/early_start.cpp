#include "launch/app/job/early_start.h"

#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "launch/app/job/choose_device.h"
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
  return first_number(
      {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID"});
}

/// In a captured graph, NCCL sends without a copy if it has registered the memory of both sides. It registers each side
/// by itself, and waits forever if one side is symmetric memory and the other is not.
void let_nccl_copy_what_it_sends() { setenv("NCCL_GRAPH_REGISTER", "0", 0); }

EarlyStart start_gpu_early(const Options& options) {
  EarlyStart early;
  early.nccl_settings = nccl_environment();
  if (!built_with_cuda() || options.device == "cpu") return early;
  early.visible_gpus = visible_gpus();
  if (early.visible_gpus == 0) return early;
  if (launched_rank().value_or(0) == 0) early.nccl_log = std::make_unique<NcclLogCapture>();
  if (options.share_gpu) let_ranks_share_gpus();
  if (options.stages > 1) let_nccl_copy_what_it_sends();
  auto gpu = early.visible_gpus == 1 ? 0 : launched_local_rank();
  if (gpu && options.share_gpu) *gpu %= early.visible_gpus;
  if (!gpu || *gpu >= early.visible_gpus) return early;
  show_only_gpu(*gpu);
  early.gpu = *gpu;
  return early;
}

}  // namespace

std::optional<int> launched_local_rank() {
  // Slurm's comes last: under mpirun in a batch script it is that of the script.
  const auto local_rank = first_number({"OMPI_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID"});
  return local_rank || launched_rank() ? local_rank : 0;
}

EarlyStart start_early(const Options& options, std::shared_ptr<Watch> watch) {
  EarlyStart early = start_gpu_early(options);
  early.launch = find_launch("ddptrain");
  const int rank = launched_rank().value_or(-1);
  early.watchdog = std::make_unique<Watchdog>("ddptrain", rank, options.watchdog, std::move(watch));
  return early;
}

}  // namespace ddptrain
