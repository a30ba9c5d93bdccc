#include <spdlog/spdlog.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "launch/check_hosts.h"
#include "launch/checkpoint_tasks.h"
#include "launch/choose_device.h"
#include "launch/describe.h"
#include "launch/early_start.h"
#include "launch/folder_lock.h"
#include "launch/memory_advice.h"
#include "launch/nccl_settings.h"
#include "launch/options.h"
#include "launch/program.h"
#include "launch/resume.h"
#include "launch/same_on_all_ranks.h"
#include "launch/tuned_cache.h"
#include "launch/use_model.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/core/log.h"
#include "runtime/core/printable.h"
#include "runtime/core/progress.h"
#include "runtime/core/signal_requests.h"
#include "runtime/core/writable.h"
#include "runtime/device/sensors.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/diagnostics/nccl_variables.h"
#include "runtime/ops/product_rate.h"
#include "runtime/topology/numa_binding.h"
#include "runtime/topology/topology.h"
#include "runtime/train/report/report.h"
#include "runtime/train/report/tensorboard_file.h"
#include "runtime/train/run/training_run.h"
#include "runtime/train/step/distributed_sampler.h"
#include "runtime/train/step/trainer.h"

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

/// What all ranks have agreed can be run.
struct Job {
  Task task = Task::train;
  Options options;
  std::unique_ptr<Workload> workload;
  std::vector<std::string> decides_parameters;
  std::string configuration;  ///< Of all flags.
  std::unique_ptr<SignalRequests> signals = std::make_unique<SignalRequests>();
  RunIdentity identity;
  std::unique_ptr<FolderLock> checkpoint_folder;  ///< Where the run writes checkpoints.
  std::optional<Checkpoint> resumed;              ///< From which the run goes on.
  StartupClock clock;
  std::string pci_bus_id;  ///< Of this rank's GPU; empty on the CPU.
  GpusOfJob gpus;
  std::string binding;  ///< What bind_to_numa() did.
  std::unique_ptr<Device> device;
  std::unique_ptr<MetricsFile> metrics;          ///< On rank 0, where asked for.
  std::unique_ptr<TensorBoardFile> tensorboard;  ///< On rank 0, where asked for.
  std::shared_ptr<Progress> progress;
  std::unique_ptr<Communicator> communicator;
  const NcclLogCapture* nccl_log = nullptr;  ///< On rank 0, where NCCL is used.
  std::unique_ptr<TunedCache> tuned;         ///< Where --tune finds something to choose.
};

/// GPUs where all ranks can have one each, else an error or the CPU, as --device says.
DeviceKind take_device(const World& world, const Options& options, EarlyStart& early) {
  if (choose_device(world, options.device, options.share_gpu, early.visible_gpus) == DeviceKind::cpu)
    return DeviceKind::cpu;
  world.agree([&] {
    if (early.gpu && early.visible_gpus > 1 && *early.gpu != world.local_rank() % early.visible_gpus) {
      usage_error(
          "rank {} on {}: the launcher counts it as rank {} of its host, MPI as {}. Start all ranks of a host in one "
          "container, or show each rank its own GPU only (CUDA_VISIBLE_DEVICES).",
          world.rank(), world.hostname(), *early.gpu, world.local_rank());
    }
    if (early.cuda.valid()) early.cuda.get();
  });
  const bool usable = world.min(cuda_device_count()) > 0;
  if (options.device == "auto" && !usable) return DeviceKind::cpu;
  world.agree([&] {
    if (!usable)
      usage_error("--device cuda: CUDA cannot use the GPUs that are there (see nvidia-smi). Use --device cpu.");
  });
  return DeviceKind::cuda;
}

void start_device(const World& world, DeviceKind kind, Job& job) {
  DeviceOptions options = device_options(job.options, kind);
  options.ranks = job.gpus.ranks_per_gpu;
  check_precision(job.options, *job.workload, kind);
  if (kind == DeviceKind::cuda && job.options.precision == "auto" && options.precision == Precision::fp32) {
    spdlog::info("Precision: fp32, as bf16 takes a GPU of compute capability 8.0 and a program compiled for it");
  }
  job.binding = bind_to_numa(job.pci_bus_id);
  job.device = kind == DeviceKind::cuda ? make_cuda_device(options, own_gpu(world)) : make_cpu_device(options);
  job.device->set_watch(world.watch());
}

void check_plan(const World& world, const Job& job) {
  const TrainerOptions& trainer = job.options.trainer;
  const DistributedSampler sampler = make_sampler(trainer, job.workload->data(), world);
  if (job.options.run.fail_rank >= world.size()) {
    usage_error("--fail-at {}:{}: there is no rank {} among {}", job.options.run.fail_rank, job.options.run.fail_step,
                job.options.run.fail_rank, world.size());
  }
  if (job.options.hang.rank >= world.size()) {
    usage_error("--hang-at: there is no rank {} among {}", job.options.hang.rank, world.size());
  }
  if (sampler.dropped() > 0) {
    spdlog::info(
        "{} of {} training samples are left out of every epoch (other ones each time): they do not fill a step",
        sampler.dropped(), job.workload->data().train_count());
  }
  const auto steps = static_cast<std::uint64_t>(total_steps(job.options.run, sampler.steps_per_epoch()));
  if (const std::uint64_t warmup = trainer.optimizer.schedule.warmup_steps; warmup > steps && world.rank() == 0) {
    spdlog::warn("--warmup {}: the run ends after {} steps, at {:.0f}% of the learning rate", warmup, steps,
                 100.0 * static_cast<double>(steps) / static_cast<double>(warmup));
  }
  if (trainer.overlap == OverlapMode::none && world.size() > 1 && world.rank() == 0) {
    spdlog::warn("--overlap none: gradients are not summed; every rank trains on its own. For measurements only.");
  }
}

/// Sizes follow from files with --init, the precision from the GPU.
void require_same_model(const World& world, const Workload& workload, const Device& device) {
  std::string text = fmt::format("the device's precision = {}\n", name_of(device.precision()));
  for (const auto& [name, size] : workload.sizes()) text += fmt::format("the model's {} = {}\n", name, size);
  require_same_configuration(world, text);
}

/// The last check, because it empties the file of --metrics.
void check_outputs(const World& world, Job& job) {
  if (world.rank() != 0) return;
  const Options& options = job.options;
  if (!options.run.trace.empty()) require_writable("--trace", options.run.trace);
  if (job.task == Task::train) job.workload->check_outputs();
  if (!options.tensorboard.empty() && job.task == Task::train) {
    const std::int64_t step = job.resumed ? job.resumed->manifest.progress.step : 0;
    job.tensorboard = std::make_unique<TensorBoardFile>(options.tensorboard, step);
  }
  const bool append = job.resumed.has_value() || job.task != Task::train;
  if (!options.metrics.empty()) job.metrics = std::make_unique<MetricsFile>(options.metrics, append);
}

/// Where the run starts, and where it writes checkpoints.
void find_start(const World& world, Job& job) {
  const std::string& folder = job.options.checkpoint.folder;
  if (!folder.empty()) job.checkpoint_folder = std::make_unique<FolderLock>(world, folder);
  job.resumed = checkpoint_to_resume(world, job.options);
}

void set_batch(const World& world, DeviceKind kind, Job& job) {
  if (!job.options.auto_batch) return;
  if (!job.resumed) return choose_batch(world, kind, job.gpus.ranks_per_gpu, job.options, *job.workload);
  job.options.trainer.batch = job.resumed->manifest.run.batch;
  spdlog::info("--batch auto: {} (as in the checkpoint)", job.options.trainer.batch);
}

void check_start(const World& world, const std::string& data, Job& job) {
  const DistributedSampler sampler = make_sampler(job.options.trainer, job.workload->data(), world);
  const std::string precision = job.device->options().fp8 ? "fp8" : std::string(name_of(job.device->precision()));
  job.identity = identity_of(job.options, job.configuration, *job.workload, world, sampler, data, precision);
  world.agree([&] {
    if (job.resumed) check_resumable(*job.resumed, job.identity, job.decides_parameters, job.options);
  });
}

void warn(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) spdlog::warn("{}", line);
}

/// Everything that a user can get wrong, agreed on by all ranks.
Job prepare(const World& world, CommandLine command_line, EarlyStart& early) {
  Job job;
  job.clock.mark("MPI");
  if (world.nodes() > 1) {
    warn(check_hosts(world));
    job.clock.mark("check of hosts");
  }
  job.task = command_line.task;
  if (job.task != Task::train) job.signals->restore();  // only training heeds them
  job.configuration = std::move(command_line.configuration);
  job.options = std::move(command_line.options);
  job.workload = std::move(command_line.workload);
  job.decides_parameters = std::move(command_line.decides_parameters);
  const Options& options = job.options;
  Workload& workload = *job.workload;
  const RunFacts facts{world.rank(), world.local_rank(), world.local_size(), options.trainer.seed,
                       job.task != Task::generate};
  world.agree([&] { workload.open(facts); });
  std::future<void> data = std::async(std::launch::async, [&] {  // while the device starts
    if (facts.reads_data) workload.load();
  });
  const DeviceKind kind = take_device(world, options, early);
  if (kind == DeviceKind::cuda) {
    world.agree([&] { job.pci_bus_id = cuda_pci_bus_id(own_gpu(world)); });
    job.gpus = use_gpus(world, job.pci_bus_id, options.share_gpu);
  }
  world.agree([&] { start_device(world, kind, job); });
  if (kind == DeviceKind::cuda && world.nodes() > 1) warn(shared_network_cards(world, job.pci_bus_id));
  job.clock.mark("device");
  world.agree([&] { data.get(); });
  if (job.task == Task::generate) return job;
  const std::string held = require_same_data(world, workload.data().content());
  require_same_model(world, workload, *job.device);
  job.clock.mark("data");
  if (job.task == Task::train) find_start(world, job);
  set_batch(world, kind, job);
  if (job.task == Task::evaluate) return job;
  world.agree([&] { check_plan(world, job); });
  require_memory(world, kind, job.gpus.ranks_per_gpu, options, workload);
  check_start(world, held, job);
  return job;
}

void start_communication(const World& world, const EarlyStart& early, Job& job) {
  const Options& o = job.options;
  const bool gpus = job.device->kind() == DeviceKind::cuda;
  world.agree([&] {
    if (o.comm != CommLibrary::nccl || gpus) return;
    usage_error("--comm nccl: NCCL carries the memory of GPUs, and these ranks compute on CPUs. Use --comm mpi.");
  });
  if (world.size() > 1 && gpus && o.comm != CommLibrary::mpi) {
    job.nccl_log = early.nccl_log.get();
    if (world.rank() == 0 && !early.nccl_settings.empty()) {
      warn(unknown_nccl_settings(early.nccl_settings, nccl_variables_in(nccl_library()), nccl_version()));
    }
  }
  job.communicator = make_communicator(
      world, *job.device,
      {.library = o.comm,
       .symmetric = o.symmetric,
       .max_ctas = o.comm_ctas,
       .scatters_sums = (o.trainer.zero || o.trainer.virtual_ranks > 0) && o.trainer.overlap != OverlapMode::none,
       .bf16_between_hosts = sends_bf16_between_hosts(o, job.device->kind()),
       .host = o.hierarchical || world.nodes() == 1 ? std::nullopt : std::optional<int>(world.rank())});
  job.clock.mark("communicator");
}

void open_tuned_cache(const World& world, Job& job) {
  if (!job.device->options().tune || job.device->kind() == DeviceKind::cpu) return;
  job.tuned = std::make_unique<TunedCache>(world, job.device->get<TunedChoices>(), job.options.tune_cache,
                                           tuned_for(job.device->name()));
}

void log_ranks(const World& world, const Job& job) {
  const std::string row = "{:>4}  {:>4}  {:>5}  {:<20}  {:<26}  {}";
  const auto rows = world.gather(fmt::format(fmt::runtime(row), world.rank(), world.node(), world.local_rank(),
                                             world.hostname(), job.device->name(), job.binding));
  if (world.rank() != 0) return;
  spdlog::info(fmt::runtime(row), "rank", "node", "local", "host", "device", "processors");
  for (const std::string& line : rows) spdlog::info("{}", line);
}

/// Label of the links between the GPUs of rank 0's node, found in the background on rank 0. Collective.
std::future<std::string> find_topology(const World& world, const std::string& pci_bus_id) {
  const bool here = world.node() == 0;  // rank 0's
  std::vector<std::string> gpus = world.gather(here ? pci_bus_id : "");
  if (world.rank() != 0) return {};
  std::erase(gpus, "");
  return std::async(std::launch::async, topology_label, world.size(), world.nodes(), gpus);
}

/// With what would make a fair comparison where an NCCL_* variable decided.
GradientPath gradient_path_of(const Trainer& trainer) {
  GradientPath path = trainer.gradient_path();
  if (path.name == "plain" && path.reason.find("NCCL_") != std::string::npos) {
    path.reason += "; --symmetric off without it makes a fair comparison";
  }
  return path;
}

/// All ranks at once, as in training. Collective where it measures.
PeakRate peak_of(const World& world, Job& job) {
  constexpr double kSeconds = 2.0;
  const Options& options = job.options;
  if (options.peak_tflops > 0.0) return {1e12 * options.peak_tflops, "--peak-tflops"};
  if (!options.measures_peak) return job.device->peak();
  const std::int64_t edge = job.device->kind() == DeviceKind::cuda ? 8192 : 768;
  world.barrier();
  const double flops =
      world.sum(product_flops(*job.device, edge, kSeconds)) / (job.gpus.shared > 0 ? job.gpus.shared : world.size());
  job.clock.mark("peak");
  return {flops, fmt::format("products of {0} x {0} x {0} in this run, {1}", edge, name_of(job.device->precision()))};
}

/// Without topology and environment.
RunInfo run_info(const World& world, const Job& job, const Trainer& trainer, const RunOptions& run,
                 const PeakRate& peak) {
  const std::int64_t steps_per_epoch = trainer.sampler().steps_per_epoch();
  RunInfo info;
  info.version = DDPTRAIN_VERSION;
  info.description = describe_run(job.options, job.decides_parameters, world.size(), job.device->kind(),
                                  trainer.model(), trainer.arena(), trainer.tree_bytes());
  info.device_name = job.device->name();
  info.nodes = world.nodes();
  info.local_world_size = world.local_size();
  info.shared_gpus = job.gpus.shared;
  info.zero = trainer.arena().partition().parts > 1 ? 1 : 0;
  info.gradient_path = gradient_path_of(trainer);
  info.epochs = total_epochs(run, steps_per_epoch);
  info.steps = total_steps(run, steps_per_epoch);
  info.peak = peak;
  info.shape = job.workload->sizes();
  return info;
}

/// Names and values in lines of "--name = value".
std::map<std::string, std::string> flags_in(const std::string& configuration) {
  std::map<std::string, std::string> flags;
  std::istringstream lines(configuration);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t end = line.find(" = ");
    if (line.rfind("--", 0) == 0 && end != std::string::npos) flags[line.substr(2, end - 2)] = line.substr(end + 3);
  }
  return flags;
}

/// As run_or_end_job, which says more where memory runs out.
void train_or_end_job(const World& world, Job& job, const std::function<void()>& part) {
  run_or_end_job("ddptrain", world, [&] {
    const Progress::Shown progress(*job.progress);
    explain_out_of_memory(job.options, *job.workload, world, job.device->kind(), part);
  });
}

void restore(const World& world, const Job& job, Trainer& trainer) {
  const Manifest& manifest = job.resumed->manifest;
  restore_arrays(*job.resumed, trainer.state(), world, *job.device);
  trainer.restored(restored_sums(manifest.progress, world.rank(), world.size(), trainer.metrics().training().size()));
  job.device->watch().set_steps(manifest.progress.step);
  if (world.size() == 1) return;  // the hash, which costs a copy of all parameters, has none to be compared with
  check_same_on_all_ranks(world, trainer.state().parameter_hash(), "the parameters of the checkpoint");
}

void train(const World& world, const EarlyStart& early, Job& job) {
  log_ranks(world, job);
  std::future<std::string> topology = find_topology(world, job.pci_bus_id);
  Workload& workload = *job.workload;
  const DistributedSampler sampler = make_sampler(job.options.trainer, workload.data(), world);
  RunOptions run = job.options.run;
  const PeakRate peak = peak_of(world, job);
  if (job.gpus.shared > 0) run.baseline = false;  // one rank alone would have a whole GPU
  const std::int64_t steps = total_steps(run, sampler.steps_per_epoch());
  Trainer trainer(trainer_options(job.options, world.size(), steps),
                  workload.make_model(*job.device, job.options.trainer.batch), workload.data(), world, *job.device,
                  *job.communicator);
  run.samples = workload.samples(trainer.model(), *job.device);
  run.trained = [&] { workload.finish(trainer.state(), world); };
  if (job.resumed) restore(world, job, trainer);
  job.clock.mark("replica");
  std::optional<CheckpointWriter> checkpoints;
  if (!job.options.checkpoint.folder.empty()) {
    checkpoints.emplace(job.options.checkpoint, job.identity, trainer, world, *job.device);
    job.clock.mark("checkpoint buffers");
  }
  std::optional<SensorSampler> sensors;
  if (ReadSensors read = gpu_sensors(job.gpus.is_first ? job.pci_bus_id : "")) sensors.emplace(std::move(read));
  const RunHooks hooks{checkpoints ? &*checkpoints : nullptr,
                       job.signals.get(),
                       job.progress.get(),
                       job.resumed ? &job.resumed->manifest.progress : nullptr,
                       sensors ? &*sensors : nullptr,
                       [&job] {
                         if (job.tuned) job.tuned->save();
                       }};
  const auto buckets = static_cast<std::int64_t>(trainer.arena().plan().buckets.size());
  spdlog::info("{} parameters in {}, {} samples per step, learning rate {:.3g}", trainer.arena().parameter_count(),
               counted(buckets, "bucket"), sampler.samples_per_step(), scaled_learning_rate(job.options, world.size()));
  if (world.size() > 1) spdlog::info("Gradients: {}", described(gradient_path_of(trainer)));
  const Watch::Phase phase(*world.watch(), "training");
  train_or_end_job(world, job, [&] {
    std::optional<Report> report;
    if (world.rank() == 0) {
      RunInfo info = run_info(world, job, trainer, run, peak);
      info.topology = topology.get();
      info.startup = job.clock.phases();
      info.environment = early.nccl_settings;
      info.configuration = flags_in(job.configuration);
      report.emplace(std::move(info), ReportFiles{job.metrics.get(), job.tensorboard.get()}, job.progress.get());
      report->start();
      if (job.resumed) report->restart(job.resumed->manifest.progress.step, job.resumed->path.string());
    }
    RunResult result =
        run_training(trainer, world, *job.device, *job.communicator, run, report ? &*report : nullptr, hooks);
    if (job.nccl_log != nullptr) result.nccl = usage_of(job.nccl_log->log());
    if (report) report->summary(result);
    spdlog::debug("summary written");
  });
}

void evaluate(const World& world, Job& job) {
  evaluate_model(world, job.options, *job.workload, *job.device, *job.communicator, job.metrics.get());
}

void generate(const World& world, Job& job) {
  generate_texts(world, job.options, *job.workload, *job.device, *job.communicator, job.metrics.get());
}

void prepare_to_hang(const World& world, const HangAt& hang) {
  if (hang.rank != world.rank()) return;
  if (hang.phase.empty()) {
    world.watch()->hang_after(static_cast<std::uint64_t>(hang.steps));
  } else {
    world.watch()->hang_in(hang.phase);
  }
}

void run(const World& world, CommandLine command_line, EarlyStart& early) {
  require_same_configuration(world, command_line.configuration);
  if (command_line.print) {
    if (world.rank() == 0) std::fputs(command_line.print->c_str(), stdout);
    return;
  }
  const auto progress = std::make_shared<Progress>(world.watch(), world.rank() == 0);
  init_logging(command_line.options.log_level, world.rank(), progress);
  if (command_line.task == Task::inspect) return inspect_checkpoints(world, command_line.options.inspect);
  if (command_line.task == Task::export_weights) return export_weights(world, command_line.options);
  if (!uses_device(command_line.task)) return print_description(world, std::move(command_line));
  early.watchdog->meet(world);
  prepare_to_hang(world, command_line.options.hang);
  const Watch::Phase phase(*world.watch(), "start-up");
  const Progress::Shown shown(*progress);
  Job job = prepare(world, std::move(command_line), early);
  job.progress = progress;
  train_or_end_job(world, job, [&] {
    start_communication(world, early, job);
    world.agree([&] { check_outputs(world, job); });
    open_tuned_cache(world, job);
    if (job.task == Task::train) train(world, early, job);
    if (job.task == Task::evaluate) evaluate(world, job);
    if (job.task == Task::generate) generate(world, job);
    if (job.tuned) job.tuned->save();
  });
  const Watch::Phase end(*world.watch(), "end");
  job.communicator.reset();
  spdlog::debug("replica and communicator ended");
  job.device.reset();
  spdlog::debug("device released");
}

}  // namespace

int main(int argc, char** argv) {
  need_no_mpi_daemon();
  CommandLine command_line;
  EarlyStart early;
  std::exception_ptr mistake;
  try {
    command_line = parse_command_line(argc, argv);
    if (!command_line.print && uses_device(command_line.task)) {
      early = start_early(command_line.options.device, command_line.options.share_gpu, command_line.options.watchdog);
    }
  } catch (...) {
    mistake = std::current_exception();
  }
  const auto work = [&](const World& world) {
    world.agree([&] {
      if (mistake) std::rethrow_exception(mistake);
    });
    run(world, std::move(command_line), early);
  };
  return run_program("ddptrain", &argc, &argv, work, early.watch);
}
