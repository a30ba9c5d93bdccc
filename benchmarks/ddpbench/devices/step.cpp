#include <memory>
#include <utility>
#include <vector>

#include "benchmarks/ddpbench/devices/step_profile.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/table.h"
#include "data/images/images.h"
#include "launch/app/flags/options.h"
#include "launch/app/job/replica_ranks.h"
#include "launch/app/plan/resolve.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/comm/mesh.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/ops/images.h"

namespace ddptrain::bench {
namespace {

using Launch = ddptrain::Options;

/// Refuses the flags of ddptrain that ask for more than training steps.
void require_only_a_step(const ddptrain::CommandLine& line) {
  const Launch& options = line.options;
  if (line.task != ddptrain::Task::train) {
    usage_error(
        "ddpbench step measures a training step. Leave out --describe, --dry-run, --evaluate, --inspect and --export, "
        "or start ddptrain with them.");
  }
  for (const auto& [flag, path] : {std::pair{"--metrics", options.metrics},
                                   {"--trace", options.run.trace},
                                   {"--checkpoint", options.checkpoint.folder}}) {
    if (!path.empty()) usage_error("{} {}: ddpbench step writes --json only; leave it out", flag, path);
  }
  if (line.workload->saves()) usage_error("--save: ddpbench step writes --json only; leave it out");
  if (!options.resume.empty()) usage_error("--resume {}: ddpbench step starts anew; leave it out", options.resume);
  if (options.auto_batch) usage_error("--batch auto: ddpbench step takes a number");
  if (options.stages > 1) {
    usage_error(
        "--pp {0}: the stages of a pipeline compute at the same time, so its step has no parts one after the other. "
        "Leave --pp out, or draw the step with ddptrain --pp {0} --trace FILE and ddpreport.",
        options.stages);
  }
}

ddptrain::CommandLine launch_command_line(const StepOptions& options) {
  std::vector<const char*> arguments = {"ddpbench step"};
  for (const std::string& argument : options.arguments) arguments.push_back(argument.c_str());
  auto result =
      ddptrain::parse_command_line(static_cast<int>(arguments.size()), arguments.data(), {{"--data", "synthetic"}});
  if (!result.print) require_only_a_step(result);
  return result;
}

PlannedMachine machine_of(const World& world, const Launch& options, const Workload& workload) {
  PlannedMachine machine;
  world.agree([&] { machine.mesh = planned_mesh(options, world.size()); });
  machine.device = choose_device(world, options.device, options.share_gpu);
  world.agree([&] {
    check_precision(options, workload, machine.device);
    check_offload(options, machine.device);
  });
  if (machine.device == DeviceKind::cuda) machine.ranks_per_gpu = ranks_per_gpu(world, options.share_gpu);
  return machine;
}

std::unique_ptr<Device> device_of(const World& world, const RunPlan& plan) {
  std::unique_ptr<Device> result;
  world.agree([&] {
    result = plan.device == DeviceKind::cuda ? make_cuda_device(plan.compute, own_gpu(world))
                                             : make_cpu_device(plan.compute);
  });
  return result;
}

/// The gather of a batch of images, if that is an operation of its own.
class InputSteps {
 public:
  InputSteps(const ImageData& data, const DistributedSampler& sampler, const TrainerOptions& options, Device& device)
      : images_(make_resident(data, device)), state_(device.allocate(sizeof(StepState))) {
    const Shape shape = {options.batch, data.train.height, data.train.width, 1};
    out_ = device.allocate(device.dtype(), shape);
    auto* state = static_cast<StepState*>(state_.data());
    const auto gather = [this, &sampler, &device, options, shape, state](std::uint32_t offset) {
      for (std::int64_t micro = 0; micro < options.grad_accum; ++micro) {
        const Slice slice{sampler.order(micro), {state, offset}, options.batch};
        device.get<ImageOps>().gather_images({slice, images_.train}, out_.view(device.dtype(), shape));
      }
    };
    StepGraphOptions graph;
    graph.eager_steps = 0;
    steps_ = std::make_unique<StepGraph>(device, state, gather, graph);
  }

  StepGraph& steps() { return *steps_; }

 private:
  ResidentImages images_;
  Buffer state_;
  Buffer out_;
  std::unique_ptr<StepGraph> steps_;
};

/// " (2 replicas of 4 ranks each)" for headings; empty if a replica is one rank.
std::string mesh_text(const MeshShape& shape) {
  if (shape.replica_is_one_rank()) return "";
  return fmt::format(" ({} of {} ranks each)", counted(shape.replicas, "replica"), shape.tensor);
}

/// The parts in the order of a step, in seconds, and their sum.
std::vector<std::pair<std::string, double>> parts_of(const StepTimes& times, bool graph) {
  return {{"data", times.data},
          {"forward", times.forward},
          {"backward", times.backward},
          {"exposed_communication", times.exposed_communication},
          {"optimizer", times.optimizer},
          {"launch_gaps", graph ? 0.0 : times.eager_step - times.step},
          {"step", graph ? times.step : times.eager_step}};
}

Json show(const World& world, const StepTimes& times, bool graph, bool data_in_forward) {
  const Table table({{"part", 24}, {"time (us)", 11}, {"of the step", 11}});
  const auto parts = parts_of(times, graph);
  const double step = parts.back().second;
  Json results = Json::array();
  std::string text = table.header();
  for (const auto& [name, seconds] : parts) {
    const bool hidden = name == "data" && data_in_forward;
    text += table.row({name, hidden ? "in forward" : microseconds(seconds),
                       hidden ? "" : fmt::format("{:.1f}%", 100.0 * seconds / step)});
    results.push_back({{"part", name}, {"time_us", hidden ? Json(nullptr) : Json(1e6 * seconds)}});
  }
  print(world, text);
  return results;
}

/// What was measured, without the times of the parts of the step.
Json fields_of(const World& world, const Launch& options, const MeshShape& shape, const Device& device, bool graph,
               const StepTimes& times) {
  return {{"benchmark", "step"},
          {"model", options.model},
          {"device", device.name()},
          {"ranks_per_gpu", device.options().ranks},
          {"precision", name_of(device.precision())},
          {"ranks", world.size()},
          {"nodes", world.nodes()},
          {"replicas", shape.replicas},
          {"tensor", shape.tensor},
          {"batch_per_rank", options.trainer.batch},
          {"grad_accum", options.trainer.grad_accum},
          {"graph", graph},
          {"stragglers_us", 1e6 * times.stragglers},
          {"communication_alone_us", 1e6 * times.communication},
          {"step_without_graph_us", 1e6 * times.eager_step},
          {"rounds", times.rounds}};
}

}  // namespace

void run_step(const World& world, const CommonOptions& common, const StepOptions& given) {
  const auto command_line = launch_command_line(given);
  if (command_line.print) {
    print(world, "ddpbench step takes the flags of ddptrain, and --json FILE.\n" + *command_line.print);
    return;
  }
  const Launch& options = command_line.options;
  Workload& workload = *command_line.workload;
  const PlannedMachine machine = machine_of(world, options, workload);
  const MeshShape& shape = machine.mesh;
  const RunPlan plan = plan_run(options, workload, machine, options.trainer.batch);
  const Mesh mesh(world, shape);
  const ResultFile file(world, common);
  const auto device = device_of(world, plan);
  world.agree([&] {
    workload.open({.rank = world.rank(),
                   .local_rank = world.local_rank(),
                   .local_size = world.local_size(),
                   .seed = options.trainer.seed,
                   .mesh = shape});
    workload.load();
  });
  const bool gpu = device->kind() == DeviceKind::cuda;
  const auto communicator = make_communicator(mesh.replicas(), *device, replica_communicator_options(plan, world));
  const ReplicaRanks replica(mesh, *device, plan, true);
  TrainerOptions trainer_options = plan.trainer;
  trainer_options.optimizer.schedule.total_steps = 1'000'000;
  trainer_options.graph = true;  // times the device, not the host
  std::unique_ptr<Model> model;
  world.agree([&] { model = workload.make_model(*device, options.trainer.batch); });
  Trainer trainer(trainer_options, std::move(model), workload.data(), mesh.replicas(), *device, *communicator,
                  replica.stages());
  const auto* images = dynamic_cast<const ImageData*>(&workload.data());
  const bool data_in_forward = images == nullptr || (gpu && options.compute.fused);
  std::unique_ptr<InputSteps> input;
  if (!data_in_forward) {
    input = std::make_unique<InputSteps>(*images, trainer.sampler(), trainer_options, *device);
  }
  SensorLog sensors(world, *device);
  const StepTimes times =
      profile_step(world, trainer, input ? &input->steps() : nullptr, *device, options.run.min_seconds);

  const bool graph = options.trainer.graph && gpu;
  print(world, fmt::format("# {}, batch {} x {} per replica, {}{}, {}, {}\n", options.model, options.trainer.batch,
                           options.trainer.grad_accum, ranks_on_nodes(world), mesh_text(shape),
                           name_of(device->precision()), device->name()));
  Json result = fields_of(world, options, shape, *device, graph, times);
  result["results"] = show(world, times, graph || !gpu, data_in_forward);
  print(world, fmt::format("# communication alone {} us\n", microseconds(times.communication)));
  if (world.size() > 1)
    print(world, fmt::format("# stragglers {} us, within the parts\n", microseconds(times.stragglers)));
  if (gpu) print(world, fmt::format("# step launched kernel by kernel {} us\n", microseconds(times.eager_step)));
  sensors.tell(result);
  file.write(result);
}

}  // namespace ddptrain::bench
