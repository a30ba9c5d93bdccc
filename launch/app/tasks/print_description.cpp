#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "launch/app/plan/description.h"
#include "launch/app/plan/memory_advice.h"
#include "launch/app/plan/prompts.h"
#include "launch/app/plan/resolve.h"
#include "launch/app/plan/run_plan.h"
#include "launch/app/tasks/tasks.h"
#include "runtime/core/error.h"
#include "runtime/train/report/sends.h"

namespace ddptrain {
namespace {

/// The one that --device asks for, whether it is there or not; auto: GPUs where all ranks have some.
DeviceKind device_to_describe(const World& world, const std::string& device) {
  if (device == "auto") return world.min(cuda_device_count()) > 0 ? DeviceKind::cuda : DeviceKind::cpu;
  return device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
}

/// Synthetic data can have as many samples as a planned job needs.
bool has_synthetic_data(const CommandLine& command_line) {
  const auto is_data = [](const Setting& setting) { return setting.name == "data"; };
  const auto data = std::find_if(command_line.settings.begin(), command_line.settings.end(), is_data);
  if (data == command_line.settings.end()) return false;
  return data->value == "\"synthetic\"" || data->value.starts_with("\"synthetic:");
}

/// Whether the data must have enough samples.
bool needs_data(const CommandLine& command_line) {
  return command_line.options.ranks == 0 || command_line.task != Task::describe || !has_synthetic_data(command_line);
}

/// For Workload::open().
RunFacts facts_of(const Options& options, const std::vector<TokenIds>& prompts, const MeshShape& mesh, int rank) {
  RunFacts facts = {.rank = rank, .seed = options.trainer.seed, .mesh = mesh};
  if (options.run.sample_every > 0) set_lengths(facts, options.generate, prompts);
  return facts;
}

/// Of the stage that keeps most, with the most that any stage sends. After Workload::load(); the workload is opened
/// again for each stage.
Description describe_stages(const RunPlan& plan, Workload& workload, const Options& options,
                            const std::vector<TokenIds>& prompts) {
  const MeshShape& mesh = plan.mesh;
  std::vector<Description> stages;
  std::vector<std::vector<Sent>> sends;
  for (int stage = 0; stage < mesh.stages; ++stage) {
    const int rank = stage * mesh.replicas * mesh.tensor;
    if (mesh.stages > 1) workload.open(facts_of(options, prompts, mesh, rank));
    stages.push_back(describe_on_meta(plan, workload, rank));
    sends.push_back(stages.back().sends);
  }
  const auto keeps_less = [](const Description& a, const Description& b) {
    return a.device_bytes() < b.device_bytes();
  };
  Description most = *std::max_element(stages.begin(), stages.end(), keeps_less);
  most.sends = most_of(sends);
  return most;
}

/// Bytes that ranks keep in the memory of their host besides that of their GPUs. The workload is opened again for each.
std::size_t host_bytes_of(const std::vector<int>& ranks, const RunPlan& plan, Workload& workload,
                          const Options& options, const std::vector<TokenIds>& prompts) {
  std::size_t bytes = 0;
  for (const int rank : ranks) {
    workload.open(facts_of(options, prompts, plan.mesh, rank));
    bytes += describe_on_meta(plan, workload, rank).host_bytes();
  }
  return bytes;
}

/// In order. Collective.
std::vector<int> ranks_of_this_host(const World& world) {
  std::vector<int> ranks;
  const std::vector<int> nodes = world.all_gather(std::vector{world.node()});
  for (int rank = 0; rank < world.size(); ++rank) {
    if (nodes[static_cast<std::size_t>(rank)] == world.node()) ranks.push_back(rank);
  }
  return ranks;
}

void refuse_auto_batch(const Options& options, DeviceKind kind) {
  if (!options.auto_batch || (kind == DeviceKind::cpu && options.ranks == 0)) return;
  usage_error("--batch auto: {}. Give a number.", options.ranks > 0
                                                      ? "the memory of other ranks is not known"
                                                      : "--describe and --dry-run touch no GPU to see its memory");
}

}  // namespace

void print_description(const World& world, CommandLine command_line) {
  const Options& options = command_line.options;
  Workload& workload = *command_line.workload;
  std::vector<TokenIds> prompts;
  PlannedMachine machine;
  machine.device = device_to_describe(world, options.device);
  world.agree([&] {
    machine.mesh = planned_mesh(options, options.ranks > 0 ? options.ranks : world.size());
    check_precision(options, workload, machine.device);
    check_offload(options, machine.device);
    if (options.run.sample_every > 0) prompts = prompts_of(options.generate);
    workload.open(facts_of(options, prompts, machine.mesh, world.rank() % machine.mesh.ranks()));
    workload.load();
    if (options.run.sample_every > 0) check_prompts(prompts, options.generate, workload.sizes().at("vocabulary"));
    refuse_auto_batch(options, machine.device);
  });
  const std::int64_t batch =
      options.auto_batch ? largest_batch_that_fits(world, machine, options, workload) : options.trainer.batch;
  const std::vector<int> ranks = ranks_of_this_host(world);
  world.agree([&] {
    const RunPlan plan =
        plan_run(options, workload, machine, batch, needs_data(command_line) ? &workload.data() : nullptr);
    if (world.rank() != 0) return;
    Description description = describe_stages(plan, workload, options, prompts);
    description.decides_parameters = std::move(command_line.decides_parameters);
    if (command_line.task == Task::describe) {
      std::fputs(description.json().c_str(), stdout);
      return;
    }
    std::fputs(description.table().c_str(), stdout);
    if (options.ranks > 0) return;  // the hosts of planned ranks are not known
    if (machine.device == DeviceKind::cpu) {
      std::fputs(cpu_memory_text(world, plan, description, options, workload).c_str(), stdout);
    }
    if (description.host_bytes() == 0) return;
    const std::size_t bytes = host_bytes_of(ranks, plan, workload, options, prompts);
    std::fputs(host_memory_text(world, bytes).c_str(), stdout);
  });
}

}  // namespace ddptrain
