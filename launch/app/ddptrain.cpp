#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launch/app/flags/options.h"
#include "launch/app/job/early_start.h"
#include "launch/app/job/job.h"
#include "launch/app/job/program.h"
#include "launch/app/job/rank_device.h"
#include "launch/app/job/replica_ranks.h"
#include "launch/app/job/same_on_all_ranks.h"
#include "launch/app/plan/run_plan.h"
#include "launch/app/tasks/tasks.h"
#include "launch/app/tasks/train.h"
#include "launch/app/tasks/training_start.h"
#include "launch/app/tasks/tuned_cache.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/core/files/outputs.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/log.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/diagnostics/nccl_variables.h"
#include "runtime/train/report/report.h"

using namespace ddptrain;

namespace {

/// Size and hash of the data. The sizes of the model follow from files with --init, the precision from the GPU.
std::string require_same_work(Job& job, const RankDevice& rank) {
  const std::string data = require_same_data(job.world, job.workload().data().content());
  NamedValues values = {{"the device's precision", std::string(name_of(rank.device->precision()))}};
  for (const auto& [name, size] : job.workload().sizes()) {
    values.emplace_back("the model's " + name, std::to_string(size));
  }
  if (job.takes_samples()) values.emplace_back("the prompts", hash_of(job.prompts));
  require_same_values(job.world, values);
  job.clock.mark("data");
  return data;
}

/// Connects this rank to the ranks that have the same stage and slice in other replicas.
std::unique_ptr<Communicator> connect_replicas(Job& job, RankDevice& rank, const RunPlan& plan) {
  const World& world = job.world;
  const auto& settings = job.early.nccl_settings;
  if (uses_nccl(plan, world) && world.rank() == 0 && !settings.empty()) {
    warn(world, unknown_nccl_settings(settings, nccl_variables_in(nccl_library()), nccl_version()));
  }
  auto communicator = make_communicator(job.mesh.replicas(), *rank.device, replica_communicator_options(plan, world));
  job.clock.mark("communicator");
  return communicator;
}

/// The files that rank 0 writes.
struct Outputs {
  Descriptor trace;                      ///< If it is a pipe: see require_writable().
  std::unique_ptr<MetricsFile> metrics;  ///< Null: none is asked for.
};

/// Checks them. Opening the file of --metrics is the last check, because it empties the file. `resumed`: whether
/// training goes on from a checkpoint.
Outputs open_outputs(const Job& job, bool resumed) {
  const Options& options = job.options();
  const bool training = job.task() == Task::train;
  Outputs outputs;
  job.world.agree([&] {
    if (job.world.rank() != 0) return;
    if (training && !options.run.trace.empty()) outputs.trace = require_writable("--trace", options.run.trace);
    if (training) job.workload().check_outputs();
    if (options.metrics.empty()) return;
    outputs.metrics = std::make_unique<MetricsFile>(options.metrics, resumed || !training);
  });
  return outputs;
}

/// Null where --tune has nothing to choose.
std::unique_ptr<TunedCache> open_tuned_cache(const Job& job, RankDevice& rank) {
  if (!rank.device->options().tune || rank.kind == DeviceKind::cpu) return nullptr;
  return std::make_unique<TunedCache>(job.world, job.mesh, rank.device->get<TunedChoices>(), job.options().tune_cache,
                                      tuned_for(rank.device->name()));
}

void work_on_device(Job job) {
  const World& world = job.world;
  RankDevice rank = start_device_and_data(job);
  heed_signals(job);
  const std::string data = require_same_work(job, rank);
  std::optional<TrainingStart> start;  // of training, not of evaluation
  if (job.task() == Task::train) start.emplace(job, rank.machine(job), data);
  const RunPlan plan = start ? *start->plan : plan_without_training(job, rank.machine(job));
  std::unique_ptr<Communicator> communicator;
  work_or_end_job(job, plan, [&] {
    heed_signals(job);
    communicator = connect_replicas(job, rank, plan);
    const Outputs outputs = open_outputs(job, start && start->resumed);
    const std::unique_ptr<TunedCache> tuned = open_tuned_cache(job, rank);
    if (start) {
      train(job, rank, *start, *communicator, outputs.metrics.get(), tuned.get());
    } else {
      evaluate_model(world, plan, job.workload(), *rank.device, *communicator, outputs.metrics.get());
    }
    if (tuned) tuned->save();
  });
  const Watch::Phase end(*world.watch(), "end");
  communicator.reset();
  spdlog::debug("replica and communicator ended");
  rank.device.reset();
  spdlog::debug("device released");
}

/// What the ranks of a job do once MPI runs.
void run(const World& world, CommandLine command_line, EarlyStart& early) {
  require_same_values(world, command_line.same_on_all_ranks);
  if (command_line.print) {
    if (world.rank() == 0) std::fputs(command_line.print->c_str(), stdout);
    return;
  }
  init_logging(command_line.options.log_level, world.rank());
  for (const std::string& note : command_line.notes) {
    if (world.rank() == 0) spdlog::info("{}", note);
  }
  world.agree([&] {
    if (world.rank() == 0) check_outputs(command_line.outputs, command_line.inputs, command_line.options.force);
    const std::string& flight = command_line.options.watchdog.flight;
    if (!flight.empty() && uses_device(command_line.task)) require_writable_folder("--flight", flight);
  });
  if (command_line.task == Task::inspect) return inspect_checkpoints(world, command_line.options.inspect);
  if (command_line.task == Task::replay) return replay_log(world, command_line.options.replay);
  if (command_line.task == Task::export_weights) return export_weights(world, command_line);
  if (!uses_device(command_line.task)) return print_description(world, std::move(command_line));
  MeshShape mesh;
  world.agree([&] { mesh = planned_mesh(command_line.options, world.size()); });
  early.watchdog->meet(world, mesh.place_of(world.rank()), mesh.stage_of(world.rank()));
  if (const HangAt& hang = command_line.options.hang; hang.rank == world.rank()) {
    world.watch()->hang_at(hang.phase, hang.steps);
  }
  const Watch::Phase phase(*world.watch(), "start-up");
  const bool generates = command_line.task == Task::generate;
  Job job{world, std::move(command_line), early, Mesh(world, mesh)};
  generates ? generate_text(std::move(job)) : work_on_device(std::move(job));
}

}  // namespace

int main(int argc, char** argv) {
  const auto watch = std::make_shared<Watch>();
  CommandLine command_line;
  EarlyStart early;
  const auto prepare = [&] {
    command_line = parse_command_line(argc, argv);
    if (!command_line.print && uses_device(command_line.task)) early = start_early(command_line.options, watch);
    if (command_line.task == Task::train) early.signals = std::make_unique<SignalRequests>();
  };
  const auto work = [&](const World& world) { run(world, std::move(command_line), early); };
  const auto needs_ranks = [&] { return !command_line.print && uses_device(command_line.task); };
  return run_program("ddptrain", &argc, &argv, prepare, work, watch, needs_ranks);
}
