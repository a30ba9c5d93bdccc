#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "launch/choose_device.h"
#include "launch/options.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl_log.h"
#include "runtime/core/error.h"
#include "runtime/core/log.h"
#include "runtime/core/writable.h"
#include "runtime/topology/gpu_selection.h"
#include "runtime/topology/numa_binding.h"
#include "runtime/topology/topology.h"
#include "runtime/train/distributed_sampler.h"
#include "runtime/train/report.h"
#include "runtime/train/trainer.h"
#include "runtime/train/training_run.h"

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
  Options options;
  std::unique_ptr<Workload> workload;
  StartupClock clock;
  std::string pci_bus_id;  ///< Of this rank's GPU; empty on the CPU.
  std::string binding;     ///< What bind_to_numa() did.
  std::unique_ptr<Device> device;
  std::unique_ptr<MetricsFile> metrics;  ///< On rank 0, where asked for.
};

/// CUDA starting in the background, beside MPI.
struct EarlyCuda {
  int visible = 0;  ///< GPUs that this process saw.
  int chosen = -1;  ///< The one that it was left with; -1: none yet.
  std::future<void> started;
};

/// Where the launcher tells the local rank before MPI does.
EarlyCuda start_cuda_early(const Options& options) {
  EarlyCuda cuda;
  if (!built_with_cuda() || options.device == "cpu") return cuda;
  cuda.visible = visible_gpus();
  const char* local_rank = std::getenv("OMPI_COMM_WORLD_LOCAL_RANK");
  const int rank = local_rank != nullptr ? std::atoi(local_rank) : cuda.visible;
  if (rank >= cuda.visible) return cuda;
  show_only_gpu(rank);
  cuda.chosen = rank;
  cuda.started = std::async(std::launch::async, start_cuda);
  return cuda;
}

/// On CUDA every rank then sees its own GPU only.
DeviceKind take_device(const World& world, const Options& options, EarlyCuda& cuda) {
  if (choose_device(world, options.device, cuda.visible) == DeviceKind::cpu) return DeviceKind::cpu;
  if (cuda.chosen < 0) show_only_gpu(world.local_rank());
  DDP_CHECK(cuda.chosen < 0 || cuda.chosen == world.local_rank(), "local rank {} of MPI was started as {}",
            world.local_rank(), cuda.chosen);
  if (cuda.started.valid()) cuda.started.get();
  const bool usable = world.min(cuda_device_count()) > 0;
  if (options.device == "auto" && !usable) return DeviceKind::cpu;
  if (!usable)
    usage_error("--device cuda: CUDA cannot use the GPUs that are there (see nvidia-smi). Use --device cpu.");
  return DeviceKind::cuda;
}

std::unique_ptr<Device> make_device(const Options& options, DeviceKind kind) {
  const DeviceOptions device = device_options(options, kind);
  return kind == DeviceKind::cuda ? make_cuda_device(device, 0) : make_cpu_device(device);
}

void check_plan(const World& world, const Job& job) {
  const TrainerOptions& trainer = job.options.trainer;
  const DistributedSampler sampler = make_sampler(trainer, job.workload->data(), world);
  if (job.options.run.fail_rank >= world.size()) {
    usage_error("--fail-at {}:{}: there are {} ranks", job.options.run.fail_rank, job.options.run.fail_step,
                world.size());
  }
  if (sampler.dropped() > 0) {
    spdlog::info(
        "{} of {} training samples are left out of every epoch (other ones each time): they do not fill a step",
        sampler.dropped(), job.workload->data().train_count());
  }
  if (trainer.overlap == OverlapMode::none && world.size() > 1 && world.rank() == 0) {
    spdlog::warn("--overlap none: gradients are not summed; every rank trains on its own. For measurements only.");
  }
}

void check_outputs(const World& world, Job& job) {
  if (world.rank() != 0) return;
  const Options& options = job.options;
  if (!options.run.trace.empty()) require_writable("--trace", options.run.trace);
  job.workload->check_outputs();
  if (!options.metrics.empty()) job.metrics = std::make_unique<MetricsFile>(options.metrics);
}

/// Everything that a user can get wrong. Throws the same error on all ranks.
Job prepare(const World& world, CommandLine command_line, EarlyCuda& cuda) {
  Job job;
  job.options = std::move(command_line.options);
  job.workload = std::move(command_line.workload);
  const Options& options = job.options;
  Workload& workload = *job.workload;
  job.clock.mark("MPI");
  world.agree([&] { workload.open({world.rank(), world.size(), options.trainer.batch, options.trainer.seed}); });
  std::future<void> data = std::async(std::launch::async, [&] { workload.load(); });  // while the device starts
  const DeviceKind kind = take_device(world, options, cuda);
  if (kind == DeviceKind::cuda) job.pci_bus_id = cuda_pci_bus_id(0);
  job.binding = bind_to_numa(job.pci_bus_id);
  world.agree([&] {
    check_precision(options, workload, chosen_precision(options, kind));
    job.device = make_device(options, kind);
  });
  job.clock.mark("device");
  world.agree([&] { data.get(); });
  job.clock.mark("data");
  world.agree([&] { check_plan(world, job); });
  world.agree([&] { check_outputs(world, job); });
  return job;
}

void log_ranks(const World& world, const Job& job) {
  const std::string row = "{:>4}  {:>4}  {:>5}  {:<20}  {:<26}  {}";
  const auto rows = world.all_gather(fmt::format(fmt::runtime(row), world.rank(), world.node(), world.local_rank(),
                                                 world.hostname(), job.device->name(), job.binding));
  spdlog::info(fmt::runtime(row), "rank", "node", "local", "host", "device", "processors");
  for (const std::string& line : rows) spdlog::info("{}", line);
}

/// Label of the links between the GPUs of rank 0's node, found in the background on rank 0. Collective.
std::future<std::string> find_topology(const World& world, const std::string& pci_bus_id) {
  const auto nodes = world.all_gather(std::to_string(world.node()));
  const auto ids = world.all_gather(pci_bus_id);
  std::vector<std::string> gpus;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    if (nodes[rank] == std::to_string(world.node()) && !ids[rank].empty()) gpus.push_back(ids[rank]);
  }
  if (world.rank() != 0) return {};
  return std::async(std::launch::async, topology_label, world.size(), world.nodes(), gpus);
}

/// Without topology and environment.
RunInfo describe(const World& world, const Job& job, const Trainer& trainer, const RunOptions& run) {
  const std::int64_t steps_per_epoch = trainer.sampler().steps_per_epoch();
  RunInfo info;
  info.version = DDPTRAIN_VERSION;
  info.model = job.options.model;
  info.device = job.device->kind() == DeviceKind::cuda ? "cuda" : "cpu";
  info.device_name = job.device->name();
  info.precision = job.device->options().fp8 ? "fp8" : name_of(job.device->precision());
  info.world_size = world.size();
  info.nodes = world.nodes();
  info.local_world_size = world.local_size();
  info.batch_per_rank = job.options.trainer.batch;
  info.grad_accum = job.options.trainer.grad_accum;
  info.zero = trainer.arena().sharded() ? 1 : 0;
  info.fused_sum = trainer.fuses_last_sum();
  info.comm_dtype = trainer.arena().gradient_type() == DType::f32 ? "fp32" : name_of(trainer.arena().gradient_type());
  info.parameters = trainer.arena().parameter_count();
  info.epochs = total_epochs(run, steps_per_epoch);
  info.steps = total_steps(run, steps_per_epoch);
  info.unit = trainer.model().unit();
  info.units_per_sample = trainer.model().predictions_per_sample();
  info.flops_per_sample = trainer.model().flops_per_sample();
  info.peak_flops = job.options.peak_tflops > 0.0 ? 1e12 * job.options.peak_tflops : job.device->peak_flops();
  info.shape = job.workload->sizes();
  return info;
}

/// Whether standard output ends at a terminal. mpirun gives its ranks a pseudo-terminal whatever its own output is.
bool writes_to_terminal() {
  if (isatty(STDOUT_FILENO) == 0) return false;
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return true;
  std::error_code error;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", getppid()), error).string();
  return target.rfind("/dev/pts/", 0) == 0 || target.rfind("/dev/tty", 0) == 0;
}

[[noreturn]] void end_all(const World& world, const std::exception& error) {
  std::fprintf(stderr, "ddptrain: error on rank %d (%s): %s\n", world.rank(), world.hostname().c_str(), error.what());
  std::fflush(stderr);
  world.abort(1);
}

void train(const World& world, Job& job) {
  log_ranks(world, job);
  std::future<std::string> topology = find_topology(world, job.pci_bus_id);
  const auto environment = nccl_environment();
  const bool nccl = world.size() > 1 && job.device->kind() == DeviceKind::cuda;
  std::optional<NcclLogCapture> nccl_log;  // before NCCL starts
  if (nccl && world.rank() == 0) nccl_log.emplace();
  const auto communicator = make_communicator(world, *job.device, {job.options.symmetric, job.options.comm_ctas});
  job.clock.mark("communicator");
  Workload& workload = *job.workload;
  const DistributedSampler sampler = make_sampler(job.options.trainer, workload.data(), world);
  RunOptions run = job.options.run;
  run.progress = job.device->kind() == DeviceKind::cpu && writes_to_terminal();
  const std::int64_t steps = total_steps(run, sampler.steps_per_epoch());
  Trainer trainer(trainer_options(job.options, world.size(), steps), workload.make_model(*job.device), workload.data(),
                  world, *job.device, *communicator);
  run.samples = workload.samples(trainer.model(), *job.device);
  run.trained = [&] { workload.finish(trainer.arena(), world); };
  job.clock.mark("replica");
  spdlog::info("{} parameters in {} buckets, {} samples per step, learning rate {:.3g}",
               trainer.arena().parameter_count(), trainer.arena().plan().buckets.size(), sampler.samples_per_step(),
               scaled_learning_rate(job.options, world.size()));
  try {  // within the life of trainer and communicator: their ends could wait for ranks that are gone
    std::optional<Report> report;
    if (world.rank() == 0) {
      RunInfo info = describe(world, job, trainer, run);
      info.topology = topology.get();
      info.startup = job.clock.phases();
      info.environment = environment;
      report.emplace(std::move(info), job.metrics.get());
      report->start();
    }
    RunResult result = run_training(trainer, world, *job.device, *communicator, run, report ? &*report : nullptr);
    if (nccl_log) result.nccl = usage_of(nccl_log->log());
    if (report) report->summary(result);
    spdlog::debug("summary written");
  } catch (const std::exception& error) {
    end_all(world, error);
  }
}

/// The command line, or what is wrong with it.
std::pair<CommandLine, std::exception_ptr> read_command_line(int argc, char** argv) {
  try {
    return {parse_command_line(argc, argv), nullptr};
  } catch (...) {
    return {CommandLine{}, std::current_exception()};
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto [command_line, mistake] = read_command_line(argc, argv);
  EarlyCuda cuda;
  if (!mistake && !command_line.print) cuda = start_cuda_early(command_line.options);
  World world(&argc, &argv);
  Job job;
  try {
    world.agree([&] {
      if (mistake) std::rethrow_exception(mistake);
    });
    if (command_line.print) {
      if (world.rank() == 0) std::fputs(command_line.print->c_str(), stdout);
      return 0;
    }
    init_logging(command_line.options.log_level, world.rank());
    job = prepare(world, std::move(command_line), cuda);
  } catch (const Error& error) {  // the same on every rank
    if (world.rank() == 0) std::fprintf(stderr, "ddptrain: %s\n", error.what());
    return dynamic_cast<const UsageError*>(&error) != nullptr ? 2 : 1;
  }
  try {
    train(world, job);
    spdlog::debug("replica and communicator ended");
    job.device.reset();
    spdlog::debug("device released");
  } catch (const std::exception& error) {
    end_all(world, error);
  }
  return 0;
}
