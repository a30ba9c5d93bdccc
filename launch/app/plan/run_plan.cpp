#include "launch/app/plan/run_plan.h"

#include "launch/app/plan/resolve.h"

namespace ddptrain {
namespace {

RunLength length_of(const Options& options, const Dataset& data, int replicas) {
  const DistributedSampler sampler = make_sampler(options.trainer, data, 0, replicas);
  return {.samples_per_step = sampler.samples_per_step(),
          .steps_per_epoch = sampler.steps_per_epoch(),
          .dropped = sampler.dropped(),
          .steps = total_steps(options.run, sampler.steps_per_epoch()),
          .epochs = total_epochs(options.run, sampler.steps_per_epoch())};
}

RunOptions run_of(const Options& options, const PlannedMachine& machine) {
  RunOptions run = options.run;
  if (machine.shared_gpus > 0) run.baseline = false;              // one rank alone would have a whole GPU
  if (!machine.mesh.replica_is_one_rank()) run.baseline = false;  // one rank alone has no whole model
  return run;
}

CommunicatorOptions communicator_of(const Options& options, DeviceKind device) {
  const TrainerOptions& trainer = options.trainer;
  const bool scatters = trainer.zero > Zero::nothing || trainer.virtual_ranks > 0;
  return {.library = options.comm,
          .symmetric = options.symmetric,
          .comm_ctas = options.comm_ctas,
          .scatters_sums = scatters && trainer.overlap != OverlapMode::none,
          .bf16_between_hosts = sends_bf16_between_hosts(options, device)};
}

}  // namespace

MeshShape planned_mesh(const Options& options, int ranks) { return mesh_of(ranks, options.stages, options.tensor); }

VirtualRanks RunPlan::virtual_ranks(int rank) const {
  return ddptrain::virtual_ranks(trainer, mesh.replica_of(rank), mesh.replicas);
}

std::vector<Pass> RunPlan::passes_of_step(int rank) const {
  return ddptrain::passes_of_step(virtual_ranks(rank).count, trainer.grad_accum);
}

RunPlan plan_run(const Options& typed, const Workload& workload, const PlannedMachine& machine, std::int64_t batch,
                 const Dataset* data) {
  Options options = typed;
  options.trainer.batch = batch;
  const int replicas = machine.mesh.replicas;
  std::optional<RunLength> length;
  if (data != nullptr) length = length_of(options, *data, replicas);
  return {.model = options.model,
          .mesh = machine.mesh,
          .device = machine.device,
          .format = chosen_format(options, machine.device),
          .compute = device_options(options, machine.device, machine.ranks_per_gpu),
          .shares_gpus = options.share_gpu,
          .trainer = trainer_options(options, replicas, length ? length->steps : 1),
          .run = run_of(options, machine),
          .length = length,
          .communicator = communicator_of(options, machine.device),
          .sums_with_mpi = sums_with_mpi(options, machine.device),
          .hierarchical = options.hierarchical,
          .writes_checkpoints = !options.checkpoint.folder.empty(),
          .saves_model = workload.saves(),
          .outer = options.outer};
}

}  // namespace ddptrain
