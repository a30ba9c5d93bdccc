#include "launch/describe.h"

#include <cstdio>
#include <memory>
#include <optional>

#include "runtime/comm/communicator.h"
#include "runtime/ops/paper_device.h"

namespace ddptrain {

namespace {

/// The one that --device asks for, whether it is there or not; auto: GPUs where all ranks have some.
DeviceKind device_to_describe(const World& world, const std::string& device) {
  if (device == "auto") return world.min(cuda_device_count()) > 0 ? DeviceKind::cuda : DeviceKind::cpu;
  return device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
}

}  // namespace

Description describe_run(const Options& options, const std::vector<std::string>& decides_parameters, const World& world,
                         DeviceKind device, const Model& model, const ParameterArena& arena, const GradientTree* tree) {
  const DeviceOptions compute = device_options(options, device);
  Description description = describe(model, arena);
  if (tree != nullptr) description.memory.push_back({"tree", tree->bytes()});
  description.model = options.model;
  description.device = device == DeviceKind::cuda ? "cuda" : "cpu";
  description.precision = compute.fp8 ? "fp8" : name_of(compute.precision);
  description.world_size = world.size();
  description.batch_per_rank = options.trainer.batch;
  description.grad_accum = options.trainer.grad_accum;
  description.virtual_ranks = options.trainer.virtual_ranks;
  description.decides_parameters = decides_parameters;
  return description;
}

void print_description(const World& world, CommandLine command_line) {
  const Options& options = command_line.options;
  Workload& workload = *command_line.workload;
  const DeviceKind kind = device_to_describe(world, options.device);
  world.agree([&] {
    check_precision(options, workload, chosen_precision(options, kind));
    workload.open({world.rank(), world.local_rank(), world.local_size(), options.trainer.batch, options.trainer.seed});
    workload.load();
    make_sampler(options.trainer, workload.data(), world);
  });
  const std::unique_ptr<Device> device = make_paper_device(device_options(options, kind), kind);
  const std::unique_ptr<Communicator> communicator =
      make_communicator(world, *device, {.library = CommLibrary::mpi, .symmetric = false});
  const std::unique_ptr<Model> model = workload.make_model(*device);
  const ParameterArena arena(model->parameters(), arena_options(trainer_options(options, world.size(), 1)), *device,
                             *communicator);
  const std::optional<GradientTree> tree = make_tree(options.trainer, arena, *device, *communicator);
  const Description description =
      describe_run(options, command_line.decides_parameters, world, kind, *model, arena, tree ? &*tree : nullptr);
  if (world.rank() != 0) return;
  const std::string text = command_line.task == Task::dry_run ? description.table() : description.json();
  std::fputs(text.c_str(), stdout);
}

}  // namespace ddptrain
