#include "launch/app/tasks/train.h"

#include <spdlog/spdlog.h>

#include <future>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "launch/app/job/replica_ranks.h"
#include "launch/app/tasks/run_info.h"
#include "launch/app/tasks/text_samples.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/device/sensors.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/topology/machine.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/measure/core_share.h"
#include "runtime/train/replica/replica_check.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/replica/whole_weights.h"
#include "runtime/train/run/training_run.h"

namespace ddptrain {
namespace {

/// Label of the links between the GPUs of rank 0's node, found in the background on rank 0. Collective.
std::future<std::string> find_topology(const World& world, const std::string& pci_bus_id) {
  const bool here = world.node() == 0;  // rank 0's
  std::vector<std::string> gpus = world.all_gather(here ? pci_bus_id : "");
  if (world.rank() != 0) return {};
  std::erase(gpus, "");
  return std::async(std::launch::async, topology_label, world.size(), world.nodes(), gpus);
}

/// Continues from a checkpoint. Collective.
void restore(const Job& job, const Checkpoint& checkpoint, Trainer& trainer) {
  const RunProgress& progress = checkpoint.manifest.progress;
  const MeshShape& mesh = job.mesh.shape();
  const bool has_groups = !job.options().outer.address.empty();
  restore_arrays(checkpoint, trainer.state(), job.world, trainer.device(), mesh.stages == 1 && !has_groups);
  std::vector<MetricSums> sums;
  if (job.mesh.stage() + 1 == mesh.stages) {
    sums = restored_sums(progress, job.mesh.replicas().rank(), mesh.replicas, trainer.metrics().training().size());
  }
  trainer.restored(std::move(sums));
  trainer.device().watch().set_steps(progress.step);
  if (job.world.size() == 1) return;  // the hash, which costs a copy of all parameters, has none to be compared with
  check_same_on_all_ranks(job.world, trainer.parameter_hash(), "the parameters of the checkpoint");
}

void log_training(const Job& job, const RunPlan& plan, const Trainer& trainer) {
  const std::string data = job.workload().data().content().text;
  if (!data.empty()) spdlog::info("Data set: {}", one_line(data));
  const auto buckets = static_cast<std::int64_t>(trainer.arena().plan().buckets.size());
  spdlog::info("{} parameters in {}, {} samples per step, learning rate {:.3g}",
               element_count(trainer.model().parameters_of_all_stages()), counted(buckets, "bucket"),
               plan.length->samples_per_step, plan.trainer.optimizer.schedule.peak);
  if (job.world.size() > 1) spdlog::info("Gradients: {}", described(gradient_path_of(trainer, plan.mesh)));
}

/// The report of rank 0, which has begun. Nothing on the other ranks.
std::optional<Report> begin_report(const Job& job, const RankDevice& rank, const TrainingStart& start,
                                   const Trainer& trainer, const TextModel* sampled, std::future<std::string> topology,
                                   MetricsFile* metrics) {
  if (job.world.rank() != 0) return std::nullopt;
  RunInfo info = run_info(job, rank, *start.plan, trainer, sampled);
  info.other_tensor = start.identity.other_tensor;
  if (start.resumed) info.resumed_at = start.resumed->manifest.progress.step;
  info.topology = topology.get();
  std::optional<Report> report(std::in_place, std::move(info), metrics);
  report->start();
  if (start.resumed) report->restart(start.resumed->manifest.progress.step, start.resumed->path.string());
  return report;
}

/// Error if --on-checkpoint-error continue has left nothing of what was trained.
void require_a_checkpoint(const RunResult& result) {
  if (!result.checkpoints || result.checkpoints->written > 0 || result.checkpoints->failed == 0) return;
  throw Error(fmt::format("no checkpoint was written, so what was trained is lost; the last of {} that failed: {}",
                          result.checkpoints->failed, result.checkpoints->error),
              true);
}

/// Throws EndedBySignal if a signal has cut measurements short.
void heed_late_signal(const Job& job, const RunPlan& plan, const RunResult& result) {
  if (!result.end_signal) return;
  const bool kept = plan.saves_model || plan.writes_checkpoints;
  throw ended_by(*result.end_signal, job,
                 kept ? "after the last step: what was trained is kept, measurements are cut short"
                      : "after the last step: measurements are cut short; without --save and --checkpoint the trained "
                        "weights are lost, as at the end of every such run");
}

std::string without_quotes(std::string text) {
  std::erase(text, '"');
  return text;
}

/// What the groups of a run must have in common.
GroupSettings settings_of_groups(const Job& job, const RunPlan& plan) {
  const OuterRule& rule = job.options().outer.rule;
  const bool rounds = rule.groups > 0;
  GroupSettings settings = {{"the program", fmt::format("ddptrain {}", DDPTRAIN_VERSION)}, {"--model", plan.model}};
  for (const auto& [name, size] : job.workload().sizes()) {
    settings.emplace_back("the model's " + name, std::to_string(size));
  }
  settings.emplace_back("--outer-optimizer", rule.optimizer == OuterOptimizer::sgd ? "sgd" : "nesterov");
  settings.emplace_back("--outer-lr", fmt::format("{}", rule.learning_rate));
  std::set<std::string> names = {"outer-groups", "outer-momentum", "outer-dtype", "outer-fragments", "outer-max-age"};
  if (rounds) names.insert({"outer-steps", "outer-delay"});
  for (const Setting& setting : job.command_line.settings) {
    if (names.contains(setting.name)) settings.emplace_back("--" + setting.name, without_quotes(setting.value));
  }
  if (rounds) settings.emplace_back("steps in all", std::to_string(plan.length->steps));
  return settings;
}

/// The f32 values of all parameters, by name, on rank 0; empty on the others. Collective.
std::map<std::string, HostTensor> trained_weights(const Job& job, const Replica& replica) {
  const WholeWeights whole(replica, job.mesh.replicas().rank(), job.world);
  std::map<std::string, HostTensor> weights;
  for (const auto& [name, shape, begin] : whole.parameters()) {
    const std::int64_t count = element_count(shape);
    std::vector<float> values(job.world.rank() == 0 ? static_cast<std::size_t>(count) : 0);
    whole.read(begin, count, values);
    if (job.world.rank() == 0) weights[name] = {shape, std::move(values)};
  }
  return weights;
}

std::optional<SensorSampler> start_sensors(const RankDevice& rank) {
  ReadSensors read = gpu_sensors(rank.gpus.is_first ? rank.pci_bus_id : "");
  if (!read) return std::nullopt;
  return std::optional<SensorSampler>(std::in_place, std::move(read));
}

}  // namespace

void train(Job& job, RankDevice& rank, const TrainingStart& start, Communicator& communicator, MetricsFile* metrics,
           TunedCache* tuned) {
  const World& world = job.world;
  const RunPlan& plan = *start.plan;
  Workload& workload = job.workload();
  Device& device = *rank.device;
  log_ranks(world, plan.mesh, rank);
  std::future<std::string> topology = find_topology(world, rank.pci_bus_id);
  const ReplicaRanks replica(job.mesh, device, plan, true);
  Trainer trainer(plan.trainer, workload.make_model(device, plan.trainer.batch), workload.data(), job.mesh.replicas(),
                  device, communicator, replica.stages());
  if (start.resumed) restore(job, *start.resumed, trainer);
  job.clock.mark("replica");
  std::optional<TextSamples> samples;
  if (job.takes_samples()) samples.emplace(job, trainer);
  std::optional<OuterLoop> outer;
  if (!job.options().outer.address.empty()) {
    outer.emplace(job.options().outer, settings_of_groups(job, plan), plan.length->steps, trainer, world,
                  start.resumed ? &*start.resumed : nullptr);
    heed_signals(job);
    job.clock.mark("log of groups");
  }
  std::optional<CheckpointWriter> checkpoints;
  if (start.folder) {
    checkpoints.emplace(job.options().checkpoint, start.identity, trainer, world,
                        outer ? outer->arrays() : std::vector<StateArray>{});
    job.clock.mark("checkpoint buffers");
  }
  std::optional<SensorSampler> sensors = start_sensors(rank);
  RunOptions run = plan.run;
  run.trained = [&] {
    if (plan.saves_model) workload.finish(trained_weights(job, trainer.replica()), world);
  };
  const auto save_tuned = [tuned] {
    if (tuned != nullptr) tuned->save();
  };
  RunHooks hooks{checkpoints ? &*checkpoints : nullptr,
                 job.early.signals.get(),
                 start.resumed ? &start.resumed->manifest.progress : nullptr,
                 sensors ? &*sensors : nullptr,
                 save_tuned,
                 outer ? &*outer : nullptr};
  if (samples) hooks.sample_texts = [&] { return samples->take(); };
  heed_signals(job);
  log_training(job, plan, trainer);
  const Watch::Phase phase(*world.watch(), "training");
  work_or_end_job(job, plan, [&] {
    std::optional<Report> report =
        begin_report(job, rank, start, trainer, samples ? samples->model() : nullptr, std::move(topology), metrics);
    std::optional<CoreShare> cores;
    if (device.kind() == DeviceKind::cpu) cores.emplace(world, device.options().threads);
    RunResult result = run_training(trainer, world, run, report ? &*report : nullptr, hooks);
    if (cores) result.disturbed = cores->disturbance();
    if (uses_nccl(plan, world) && job.early.nccl_log) result.nccl = usage_of(job.early.nccl_log->log());
    if (report) report->summary(result);
    if (!plan.saves_model) require_a_checkpoint(result);
    spdlog::debug("summary written");
    heed_late_signal(job, plan, result);
  });
}

}  // namespace ddptrain
