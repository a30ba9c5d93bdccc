#include <spdlog/spdlog.h>

#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "launch/app/flags/options.h"
#include "launch/app/job/check_hosts.h"
#include "launch/app/job/choose_device.h"
#include "launch/app/job/early_start.h"
#include "launch/app/job/folder_lock.h"
#include "launch/app/job/program.h"
#include "launch/app/job/replica_ranks.h"
#include "launch/app/job/same_on_all_ranks.h"
#include "launch/app/tasks/describe.h"
#include "launch/app/tasks/memory_advice.h"
#include "launch/app/tasks/resume.h"
#include "launch/app/tasks/tasks.h"
#include "launch/app/tasks/tuned_cache.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/mesh.h"
#include "runtime/core/error.h"
#include "runtime/core/files/outputs.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/log.h"
#include "runtime/core/process/cores.h"
#include "runtime/core/process/host.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/core/text.h"
#include "runtime/device/sensors.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/diagnostics/nccl_variables.h"
#include "runtime/topology/machine.h"
#include "runtime/topology/numa_binding.h"
#include "runtime/train/replica/replica_check.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/report/report.h"
#include "runtime/train/run/training_run.h"
#include "runtime/train/step/distributed_sampler.h"

using namespace ddptrain;

namespace {

/// Where the time before the first step goes.
class StartupClock {
 public:
  /// Ends the phase that began with the last mark, or with the process.
  void mark(const char* phase) {
    const double now = seconds_since_process_start();
    phases_.emplace_back(phase, now - last_);
    last_ = now;
  }
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }

 private:
  double last_ = 0.0;
  std::vector<std::pair<std::string, double>> phases_;
};

/// What a task on a device begins with. The types below are each made from those before.
struct Job {
  const World& world;
  CommandLine command_line;
  EarlyStart& early;
  Mesh mesh{world, mesh_of(world.size(), command_line.options.stages, command_line.options.tensor)};
  StartupClock clock = {};

  Task task() const { return command_line.task; }
  const Options& options() const { return command_line.options; }
  Workload& workload() const { return *command_line.workload; }
};

/// How a signal ends a job of which nothing is lost.
EndedBySignal ended_by(int signal, const Job& job, const std::string& when) {
  const bool resumable = !job.options().checkpoint.folder.empty();
  return {fmt::format("{}: ended {}", signal_name(signal), when), resumable ? kExitResumable : 128 + signal};
}

/// Between the phases of start-up. Throws EndedBySignal on all ranks if a signal asks one of them for the end.
void heed_signals(const Job& job) {
  const int signal = static_cast<int>(job.world.max(job.early.signals ? SignalRequests::end() : 0));
  if (signal != 0) throw ended_by(signal, job, "before the first step; nothing was trained or saved");
}

/// On rank 0.
void warn(const World& world, const std::vector<std::string>& lines) {
  if (world.rank() != 0) return;
  for (const std::string& line : lines) spdlog::warn("{}", line);
}

/// GPUs where all ranks can have one each, else an error or the CPU, as --device says.
DeviceKind choose_kind(const World& world, const Options& options, const EarlyStart& early) {
  if (choose_device(world, options.device, options.share_gpu, early.visible_gpus) == DeviceKind::cpu)
    return DeviceKind::cpu;
  world.agree([&] {
    if (early.gpu && early.visible_gpus > 1 && *early.gpu != world.local_rank() % early.visible_gpus) {
      usage_error(
          "rank {} on {}: the launcher counts it as rank {} of its host, MPI as {}. Start all ranks of a host in one "
          "container, or show each rank its own GPU only (CUDA_VISIBLE_DEVICES).",
          world.rank(), world.hostname(), *early.gpu, world.local_rank());
    }
  });
  const bool usable = world.min(cuda_device_count()) > 0;
  if (options.device == "auto" && !usable) return DeviceKind::cpu;
  world.agree([&] {
    if (!usable)
      usage_error("--device cuda: CUDA cannot use the GPUs that are there (see nvidia-smi). Use --device cpu.");
  });
  return DeviceKind::cuda;
}

/// Says what one rank that was started without a launcher leaves unused, and what is lost at its end.
void explain_one_rank(const Job& job, DeviceKind kind, int cores) {
  if (job.task() != Task::train || job.world.size() > 1 || job.early.launch.by_launcher) return;
  const bool cuda = kind == DeviceKind::cuda;
  const int all = cuda ? job.early.visible_gpus : cores;
  const int used = cuda ? 1 : std::min(job.options().compute.threads, cores);
  if (all > used) {
    const char* thing = cuda ? "GPU" : "core";
    spdlog::info("1 rank on {} of {}. To use all: mpirun -np {} --bind-to none ddptrain ...", used, counted(all, thing),
                 all / (cuda ? 1 : job.options().compute.threads));
  }
  if (job.workload().saves() || !job.options().checkpoint.folder.empty()) return;
  spdlog::info("The trained weights are lost at the end: --save DIR keeps them, --checkpoint DIR lets a run resume");
}

/// The device of this rank.
struct RankDevice {
  explicit RankDevice(Job& job);

  DeviceKind kind;
  std::string pci_bus_id;  ///< Of this rank's GPU; empty on the CPU.
  GpusOfJob gpus;
  std::string binding;  ///< What bind_to_numa() did.
  std::unique_ptr<Device> device;
};

RankDevice::RankDevice(Job& job) : kind(choose_kind(job.world, job.options(), job.early)) {
  const World& world = job.world;
  const Options& options = job.options();
  const bool cuda = kind == DeviceKind::cuda;
  explain_one_rank(job, kind, usable_cores());
  if (cuda) {
    world.agree([&] { pci_bus_id = cuda_pci_bus_id(own_gpu(world)); });
    gpus = use_gpus(world, pci_bus_id, options.share_gpu);
  }
  world.agree([&] {
    check_precision(options, job.workload(), kind);
    DeviceOptions compute = device_options(options, kind);
    compute.ranks = gpus.ranks_per_gpu;
    if (cuda && options.precision == "auto" && compute.precision == Precision::fp32) {
      spdlog::info("Precision: fp32, as bf16 takes a GPU of compute capability 8.0 and a program compiled for it");
    }
    binding = bind_to_numa(pci_bus_id);
    device = cuda ? make_cuda_device(compute, own_gpu(world)) : make_cpu_device(compute);
    device->set_watch(world.watch());
  });
  if (cuda && world.nodes() > 1) warn(world, shared_network_cards(world, pci_bus_id));
  job.clock.mark("device");
}

/// The data is read while the device starts.
RankDevice start_device(Job& job) {
  const World& world = job.world;
  job.clock.mark("MPI");
  if (world.size() == 1 && !job.early.launch.warning.empty()) spdlog::warn("{}", job.early.launch.warning);
  if (world.nodes() > 1) {
    warn(world, host_differences(gather_host_facts(world)));
    job.clock.mark("check of hosts");
  }
  const RunFacts facts = {.rank = world.rank(),
                          .local_rank = world.local_rank(),
                          .local_size = world.local_size(),
                          .seed = job.options().trainer.seed,
                          .mesh = job.mesh.shape()};
  world.agree([&] { job.workload().open(facts); });
  std::future<void> data = std::async(std::launch::async, [&] { job.workload().load(); });
  RankDevice device(job);
  world.agree([&] { data.get(); });
  return device;
}

/// Size and hash of the data. The sizes of the model follow from files with --init, the precision from the GPU.
std::string require_same_work(Job& job, const RankDevice& rank) {
  const std::string data = require_same_data(job.world, job.workload().data().content());
  NamedValues values = {{"the device's precision", std::string(name_of(rank.device->precision()))}};
  for (const auto& [name, size] : job.workload().sizes()) {
    values.emplace_back("the model's " + name, std::to_string(size));
  }
  require_same_values(job.world, values);
  job.clock.mark("data");
  return data;
}

void settle_batch(Job& job, const RankDevice& rank, const std::optional<Checkpoint>& resumed) {
  if (!job.options().auto_batch) return;
  std::int64_t& batch = job.command_line.options.trainer.batch;
  if (resumed) {
    batch = resumed->manifest.run.batch;
    spdlog::info("--batch auto: {} (as in the checkpoint)", batch);
  } else {
    batch = largest_batch_that_fits(job.world, rank.kind, rank.gpus.ranks_per_gpu, job.options(), job.workload());
  }
}

void check_plan(const Job& job) {
  const World& world = job.world;
  const Options& options = job.options();
  const DistributedSampler sampler =
      make_sampler(options.trainer, job.workload().data(), job.mesh.replicas().rank(), job.mesh.replicas().size());
  for (const auto& [flag, rank] : {std::pair{"--fail-at", options.run.fail_rank}, {"--hang-at", options.hang.rank}}) {
    if (rank >= world.size()) usage_error("{}: there is no rank {} among {}", flag, rank, world.size());
  }
  if (sampler.dropped() > 0) {
    spdlog::info("Each epoch skips {} random samples of {} (incomplete last step)", sampler.dropped(),
                 job.workload().data().train_count());
  }
  const bool replicas_differ = options.trainer.overlap == OverlapMode::none && job.mesh.shape().replicas > 1;
  if (replicas_differ && (!options.checkpoint.folder.empty() || job.workload().saves())) {
    usage_error(
        "--overlap none with {}: every replica trains on its own, and what is written would mix them. Leave {} out.",
        options.checkpoint.folder.empty() ? "--save" : "--checkpoint",
        options.checkpoint.folder.empty() ? "--save" : "--checkpoint");
  }
  if (world.rank() != 0) return;
  const auto steps = static_cast<std::uint64_t>(total_steps(options.run, sampler.steps_per_epoch()));
  if (const std::uint64_t warmup = options.trainer.optimizer.schedule.warmup_steps; warmup > steps) {
    spdlog::warn("--warmup {}: the run ends after {} steps, at {:.0f}% of the learning rate", warmup, steps,
                 100.0 * static_cast<double>(steps) / static_cast<double>(warmup));
  }
  if (replicas_differ) {
    spdlog::warn("--overlap none: gradients are not reduced; every replica trains on its own. For measurements only.");
  }
}

/// Where training starts: what a user can get wrong about it is agreed on by all ranks.
struct TrainingStart {
  TrainingStart(Job& job, const RankDevice& rank, const std::string& data);

  std::optional<FolderLock> folder;   ///< Where the run writes checkpoints.
  std::optional<Checkpoint> resumed;  ///< From which the run goes on.
  RunIdentity identity;
};

TrainingStart::TrainingStart(Job& job, const RankDevice& rank, const std::string& data) {
  const World& world = job.world;
  const Options& options = job.options();
  if (!options.checkpoint.folder.empty()) folder.emplace(world, options.checkpoint.folder);
  resumed = checkpoint_to_resume(world, options);
  settle_batch(job, rank, resumed);
  world.agree([&] { check_plan(job); });
  require_memory(world, rank.kind, rank.gpus.ranks_per_gpu, options, job.workload());
  const std::string precision = rank.device->options().fp8 ? "fp8" : std::string(name_of(rank.device->precision()));
  identity = identity_of(job.command_line, world, data, precision);
  if (!resumed) return;
  world.agree([&] { check_resumable(*resumed, identity, job.command_line); });
  identity.other_tensor = had_other_tensor(resumed->manifest.run, identity);
}

/// Checks the files that rank 0 writes. The file of --metrics, on rank 0 if it is asked for. Opening it is the last
/// check, because it empties the file. `resumed`: whether training goes on from a checkpoint.
std::unique_ptr<MetricsFile> open_outputs(const Job& job, bool resumed) {
  const Options& options = job.options();
  const bool training = job.task() == Task::train;
  std::unique_ptr<MetricsFile> metrics;
  job.world.agree([&] {
    if (job.world.rank() != 0) return;
    if (!options.run.trace.empty()) require_writable("--trace", options.run.trace);
    if (training) job.workload().check_outputs();
    if (!options.metrics.empty()) metrics = std::make_unique<MetricsFile>(options.metrics, resumed || !training);
  });
  return metrics;
}

bool uses_nccl(const Job& job, const RankDevice& rank) {
  return job.world.size() > 1 && rank.kind == DeviceKind::cuda && job.options().comm != CommLibrary::mpi;
}

std::unique_ptr<Communicator> start_communication(Job& job, RankDevice& rank) {
  const World& world = job.world;
  const Options& o = job.options();
  const auto& settings = job.early.nccl_settings;
  if (uses_nccl(job, rank) && world.rank() == 0 && !settings.empty()) {
    warn(world, unknown_nccl_settings(settings, nccl_variables_in(nccl_library()), nccl_version()));
  }
  auto communicator =
      make_communicator(job.mesh.replicas(), *rank.device, replica_communicator_options(o, world, rank.kind));
  job.clock.mark("communicator");
  return communicator;
}

/// Null where --tune has nothing to choose.
std::unique_ptr<TunedCache> open_tuned_cache(const Job& job, RankDevice& rank) {
  if (!rank.device->options().tune || rank.kind == DeviceKind::cpu) return nullptr;
  return std::make_unique<TunedCache>(job.world, rank.device->get<TunedChoices>(), job.options().tune_cache,
                                      tuned_for(rank.device->name()));
}

void log_ranks(const World& world, const MeshShape& mesh, const RankDevice& rank) {
  const std::string row = "{:>4}  {:>4}  {:>5}  {:<{}}{:<20}  {:<26}  {}";
  const int width = mesh.replica_is_one_rank() ? 0 : 28;
  const auto rows = world.all_gather(fmt::format(fmt::runtime(row), world.rank(), world.node(), world.local_rank(),
                                                 mesh.place_of(world.rank()), width, world.hostname(),
                                                 rank.device->name(), rank.binding));
  if (world.rank() != 0) return;
  spdlog::info(fmt::runtime(row), "rank", "node", "local", width > 0 ? "mesh" : "", width, "host", "device",
               "processors");
  for (const std::string& line : rows) spdlog::info("{}", line);
}

/// Label of the links between the GPUs of rank 0's node, found in the background on rank 0. Collective.
std::future<std::string> find_topology(const World& world, const std::string& pci_bus_id) {
  const bool here = world.node() == 0;  // rank 0's
  std::vector<std::string> gpus = world.all_gather(here ? pci_bus_id : "");
  if (world.rank() != 0) return {};
  std::erase(gpus, "");
  return std::async(std::launch::async, topology_label, world.size(), world.nodes(), gpus);
}

/// With what would make a fair comparison where an NCCL_* variable decided.
GradientPath gradient_path_of(const Trainer& trainer, const MeshShape& mesh) {
  GradientPath path = trainer.gradient_path();
  if (path.name == "none" && mesh.replicas == 1 && mesh.ranks() > 1) path.reason = "one replica";
  if (path.name == "plain" && path.reason.find("NCCL_") != std::string::npos) {
    path.reason += "; --symmetric off without it makes a fair comparison";
  }
  return path;
}

PeakRate peak_of(const Job& job, const RankDevice& rank) {
  if (job.options().peak_tflops > 0.0) return {1e12 * job.options().peak_tflops, "--peak-tflops"};
  return rank.device->peak();
}

RunInfo run_info(const Job& job, const RankDevice& rank, const Trainer& trainer, const RunOptions& run) {
  const std::int64_t steps_per_epoch = trainer.sampler().steps_per_epoch();
  RunInfo info;
  info.version = DDPTRAIN_VERSION;
  info.description = describe_run(job.options(), job.workload(), job.mesh.shape(), job.world.rank(), rank.kind,
                                  trainer.model(), trainer.arena(), trainer.tree_bytes());
  info.description.decides_parameters = job.command_line.decides_parameters;
  info.device_name = rank.device->name();
  info.nodes = job.world.nodes();
  info.local_world_size = job.world.local_size();
  info.shared_gpus = rank.gpus.shared;
  info.peak = peak_of(job, rank);
  info.zero = static_cast<int>(trainer.arena().zero());
  info.baseline = job.options().run.baseline;
  info.gradient_path = gradient_path_of(trainer, job.mesh.shape());
  info.epochs = total_epochs(run, steps_per_epoch);
  info.steps = total_steps(run, steps_per_epoch);
  info.shape = job.workload().sizes();
  info.startup = job.clock.phases();
  info.environment = job.early.nccl_settings;
  for (const Setting& setting : job.command_line.settings) info.configuration[setting.name] = setting.value;
  return info;
}

/// As run_or_end_job, which says more where memory runs out.
void work_or_end_job(const Job& job, const RankDevice& rank, const std::function<void()>& part) {
  run_or_end_job("ddptrain", job.world,
                 [&] { explain_out_of_memory(job.options(), job.workload(), job.world, rank.kind, part); });
}

void restore(const Job& job, const Checkpoint& checkpoint, Device& device, Trainer& trainer) {
  const RunProgress& progress = checkpoint.manifest.progress;
  const MeshShape& mesh = job.mesh.shape();
  restore_arrays(checkpoint, trainer.state(), job.world, device, mesh.stages == 1);
  std::vector<MetricSums> sums;
  if (job.mesh.stage() + 1 == mesh.stages) {
    sums = restored_sums(progress, job.mesh.replicas().rank(), mesh.replicas, trainer.metrics().training().size());
  }
  trainer.restored(std::move(sums));
  device.watch().set_steps(progress.step);
  if (job.world.size() == 1) return;  // the hash, which costs a copy of all parameters, has none to be compared with
  check_same_on_all_ranks(job.world, trainer.parameter_hash(), "the parameters of the checkpoint");
}

void log_training(const Job& job, const RunIdentity& identity, const Trainer& trainer) {
  const auto buckets = static_cast<std::int64_t>(trainer.arena().plan().buckets.size());
  spdlog::info("{} parameters in {}, {} samples per step, learning rate {:.3g}",
               element_count(trainer.model().parameters_of_all_stages()), counted(buckets, "bucket"),
               identity.samples_per_step, scaled_learning_rate(job.options(), job.mesh.shape().replicas));
  if (job.world.size() > 1) spdlog::info("Gradients: {}", described(gradient_path_of(trainer, job.mesh.shape())));
}

/// Error if --on-checkpoint-error continue has left nothing of what was trained.
void require_a_checkpoint(const RunResult& result) {
  if (!result.checkpoints || result.checkpoints->written > 0 || result.checkpoints->failed == 0) return;
  throw Error(fmt::format("no checkpoint was written, so what was trained is lost; the last of {} that failed: {}",
                          result.checkpoints->failed, result.checkpoints->error),
              true);
}

void train(Job& job, RankDevice& rank, const TrainingStart& start, Communicator& communicator, MetricsFile* metrics,
           TunedCache* tuned) {
  const World& world = job.world;
  Workload& workload = job.workload();
  Device& device = *rank.device;
  const RunProgress* const resumed = start.resumed ? &start.resumed->manifest.progress : nullptr;
  log_ranks(world, job.mesh.shape(), rank);
  std::future<std::string> topology = find_topology(world, rank.pci_bus_id);
  RunOptions run = job.options().run;
  if (rank.gpus.shared > 0) run.baseline = false;                     // one rank alone would have a whole GPU
  if (!job.mesh.shape().replica_is_one_rank()) run.baseline = false;  // one rank alone has no whole model
  const std::int64_t steps = total_steps(run, start.identity.steps_per_epoch);
  const ReplicaRanks replica(job.mesh, device, job.options());
  Trainer trainer(trainer_options(job.options(), job.mesh.shape().replicas, steps),
                  workload.make_model(device, job.options().trainer.batch), workload.data(), job.mesh.replicas(),
                  device, communicator, replica.stages());
  run.trained = [&] { workload.finish(trainer.state(), world); };
  if (start.resumed) restore(job, *start.resumed, device, trainer);
  job.clock.mark("replica");
  std::optional<CheckpointWriter> checkpoints;
  if (start.folder) {
    checkpoints.emplace(job.options().checkpoint, start.identity, trainer, world);
    job.clock.mark("checkpoint buffers");
  }
  std::optional<SensorSampler> sensors;
  if (ReadSensors read = gpu_sensors(rank.gpus.is_first ? rank.pci_bus_id : "")) sensors.emplace(std::move(read));
  const auto save_tuned = [tuned] {
    if (tuned != nullptr) tuned->save();
  };
  const RunHooks hooks{checkpoints ? &*checkpoints : nullptr, job.early.signals.get(), resumed,
                       sensors ? &*sensors : nullptr, save_tuned};
  heed_signals(job);
  log_training(job, start.identity, trainer);
  const Watch::Phase phase(*world.watch(), "training");
  work_or_end_job(job, rank, [&] {
    std::optional<Report> report;
    if (world.rank() == 0) {
      RunInfo info = run_info(job, rank, trainer, run);
      info.other_tensor = start.identity.other_tensor;
      if (resumed != nullptr) info.resumed_at = resumed->step;
      info.topology = topology.get();
      report.emplace(std::move(info), metrics);
      report->start();
      if (resumed != nullptr) report->restart(resumed->step, start.resumed->path.string());
    }
    RunResult result = run_training(trainer, world, run, report ? &*report : nullptr, hooks);
    if (uses_nccl(job, rank) && job.early.nccl_log) result.nccl = usage_of(job.early.nccl_log->log());
    if (report) report->summary(result);
    if (!workload.saves()) require_a_checkpoint(result);
    spdlog::debug("summary written");
    if (result.end_signal == 0) return;
    const bool kept = workload.saves() || !job.options().checkpoint.folder.empty();
    throw ended_by(result.end_signal, job,
                   kept
                       ? "after the last step: what was trained is kept, measurements are cut short"
                       : "after the last step: measurements are cut short; without --save and --checkpoint the trained "
                         "weights are lost, as at the end of every such run");
  });
}

void work_on_device(Job job) {
  const World& world = job.world;
  RankDevice rank = start_device(job);
  heed_signals(job);
  const std::string data = require_same_work(job, rank);
  std::optional<TrainingStart> start;
  if (job.task() == Task::train) {
    start.emplace(job, rank, data);
  } else {
    settle_batch(job, rank, std::nullopt);
  }
  std::unique_ptr<Communicator> communicator;
  work_or_end_job(job, rank, [&] {
    heed_signals(job);
    communicator = start_communication(job, rank);
    const auto metrics = open_outputs(job, start && start->resumed);
    const std::unique_ptr<TunedCache> tuned = open_tuned_cache(job, rank);
    if (start) {
      train(job, rank, *start, *communicator, metrics.get(), tuned.get());
    } else {
      evaluate_model(world, job.options(), job.workload(), *rank.device, *communicator, metrics.get());
    }
    if (tuned) tuned->save();
  });
  const Watch::Phase end(*world.watch(), "end");
  communicator.reset();
  spdlog::debug("replica and communicator ended");
  rank.device.reset();
  spdlog::debug("device released");
}

void run(const World& world, CommandLine command_line, EarlyStart& early) {
  require_same_values(world, command_line.same_on_all_ranks);
  if (command_line.print) {
    if (world.rank() == 0) std::fputs(command_line.print->c_str(), stdout);
    return;
  }
  init_logging(command_line.options.log_level, world.rank());
  world.agree([&] {
    if (world.rank() == 0) check_outputs(command_line.outputs, command_line.inputs, command_line.options.force);
  });
  if (command_line.task == Task::inspect) return inspect_checkpoints(world, command_line.options.inspect);
  if (command_line.task == Task::export_weights) return export_weights(world, command_line.options);
  if (!uses_device(command_line.task)) return print_description(world, std::move(command_line));
  MeshShape mesh;
  world.agree([&] { mesh = mesh_of(world.size(), command_line.options.stages, command_line.options.tensor); });
  early.watchdog->meet(world, mesh.place_of(world.rank()), mesh.stage_of(world.rank()));
  if (const HangAt& hang = command_line.options.hang; hang.rank == world.rank()) {
    world.watch()->hang_at(hang.phase, hang.steps);
  }
  const Watch::Phase phase(*world.watch(), "start-up");
  work_on_device({world, std::move(command_line), early});
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
