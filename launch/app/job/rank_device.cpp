#include "launch/app/job/rank_device.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <future>

#include "launch/app/job/check_hosts.h"
#include "launch/app/plan/resolve.h"
#include "runtime/core/error.h"
#include "runtime/core/process/cores.h"
#include "runtime/core/text.h"
#include "runtime/topology/numa_binding.h"

namespace ddptrain {
namespace {

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

/// How this rank's device computes.
DeviceOptions compute_of(const Job& job, DeviceKind kind, const GpusOfJob& gpus) {
  check_precision(job.options(), job.workload(), kind);
  if (job.task() == Task::train) check_offload(job.options(), kind);
  DeviceOptions compute = device_options(job.options(), kind, gpus.ranks_per_gpu);
  if (kind == DeviceKind::cuda && !job.options().precision && compute.precision == Precision::fp32) {
    spdlog::info("Precision: fp32, as bf16 takes a GPU of compute capability 8.0 and a program compiled for it");
  }
  return compute;
}

/// It has to know how long the texts of samples become.
void open_workload(Job& job) {
  RunFacts facts = facts_of(job.world, job.options(), job.mesh.shape());
  if (job.takes_samples()) {
    job.prompts = prompts_of(job.options().generate);
    set_lengths(facts, job.options().generate, job.prompts);
  }
  job.workload().open(facts);
}

}  // namespace

RankDevice::RankDevice(Job& job) : kind(choose_kind(job.world, job.options(), job.early)) {
  const World& world = job.world;
  const bool cuda = kind == DeviceKind::cuda;
  explain_one_rank(job, kind, usable_cores());
  if (cuda) {
    world.agree([&] { pci_bus_id = cuda_pci_bus_id(own_gpu(world)); });
    gpus = use_gpus(world, pci_bus_id, job.options().share_gpu);
  }
  world.agree([&] {
    const DeviceOptions compute = compute_of(job, kind, gpus);
    binding = bind_to_numa(pci_bus_id);
    device = cuda ? make_cuda_device(compute, own_gpu(world)) : make_cpu_device(compute);
    device->set_watch(world.watch());
    device->set_collectives_overlap(world.size() > 1);  // a trainer knows better
  });
  if (cuda && world.nodes() > 1) warn(world, shared_network_cards(world, pci_bus_id));
  job.clock.mark("device");
}

RankDevice start_device_and_data(Job& job) {
  const World& world = job.world;
  job.clock.mark("MPI");
  if (world.size() == 1 && !job.early.launch.warning.empty()) spdlog::warn("{}", job.early.launch.warning);
  if (world.nodes() > 1) {
    warn(world, host_differences(gather_host_facts(world)));
    job.clock.mark("check of hosts");
  }
  world.agree([&] { open_workload(job); });
  std::future<void> data = std::async(std::launch::async, [&] { job.workload().load(); });
  RankDevice device(job);
  world.agree([&] {
    data.get();
    if (job.takes_samples())
      check_prompts(job.prompts, job.options().generate, job.workload().sizes().at("vocabulary"));
  });
  return device;
}

void warn(const World& world, const std::vector<std::string>& lines) {
  if (world.rank() != 0) return;
  for (const std::string& line : lines) spdlog::warn("{}", line);
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

}  // namespace ddptrain
