#include <memory>
#include <utility>
#include <vector>

#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/table.h"
#include "data/fashion_mnist.h"
#include "data/synthetic.h"
#include "launch/options.h"
#include "runtime/core/error.h"
#include "runtime/train/resident_images.h"
#include "runtime/train/step_profile.h"

namespace ddptrain::bench {
namespace {

using Launch = ddptrain::Options;

Launch launch_options(const StepOptions& options) {
  std::vector<const char*> arguments = {"ddpbench step"};
  for (const std::string& argument : options.arguments) arguments.push_back(argument.c_str());
  const auto command_line = ddptrain::parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  if (command_line.print) usage_error("ddpbench step takes the flags of a run; ddptrain --help lists them");
  return command_line.options;
}

/// Synthetic images unless --data names a folder.
ImageData load_images(const Launch& options) {
  if (options.data.empty() || options.data == "synthetic") return make_synthetic(60000, options.seed);
  const std::string prefix = "synthetic:";
  if (options.data.rfind(prefix, 0) != 0) return load_fashion_mnist(find_fashion_mnist(options.data));
  const std::string count = options.data.substr(prefix.size());
  if (count.empty() || count.size() > 10 || count.find_first_not_of("0123456789") != std::string::npos) {
    usage_error("--data {}: give synthetic:COUNT, COUNT being a number of images", options.data);
  }
  return make_synthetic(std::stoll(count), options.seed);
}

std::unique_ptr<Backend> backend_of(const World& world, const Launch& options) {
  const DeviceKind device = choose_device(world, options.device);
  const BackendOptions backend{ddptrain::chosen_precision(options, device), options.memory_format, options.fused,
                               options.threads, options.comm_ctas};
  std::unique_ptr<Backend> result;
  world.agree([&] {
    result = device == DeviceKind::cuda ? make_cuda_backend(backend, world.local_rank()) : make_cpu_backend(backend);
  });
  return result;
}

/// Copies of the images that the first operation of forward reads, where that is an operation of its own.
class InputSteps {
 public:
  InputSteps(const ImageData& data, const DistributedSampler& sampler, const Launch& options, Backend& backend)
      : images_(data.train, backend), state_(backend.allocate(sizeof(StepState))) {
    const ImageBatch first = images_.batch(sampler.order(0), {}, options.batch);
    out_ = backend.allocate(backend.dtype(), {options.batch, first.images.dim(1), first.images.dim(2), 1});
    const Tensor out = out_.view(backend.dtype(), {options.batch, first.images.dim(1), first.images.dim(2), 1});
    const auto gather = [this, &sampler, &backend, options, out](std::uint32_t offset) {
      const StepRef step{static_cast<const StepState*>(state_.data()), offset};
      for (std::int64_t micro = 0; micro < options.grad_accum; ++micro) {
        backend.gather_images(images_.batch(sampler.order(micro), step, options.batch), out);
      }
    };
    StepGraphOptions graph;
    graph.eager_steps = 0;
    steps_ = std::make_unique<StepGraph>(backend, static_cast<StepState*>(state_.data()), gather, graph);
  }

  StepGraph& steps() { return *steps_; }

 private:
  ResidentImages images_;
  Buffer state_;
  Buffer out_;
  std::unique_ptr<StepGraph> steps_;
};

/// The parts in the order of a step, in seconds, and what they add up to.
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

}  // namespace

void run_step(const World& world, const CommonOptions& common, const StepOptions& given) {
  const Launch options = launch_options(given);
  const ResultFile file(world, common.json);
  const auto backend = backend_of(world, options);
  ImageData data;
  world.agree([&] { data = load_images(options); });
  const bool gpu = backend->kind() == DeviceKind::cuda;
  const auto communicator = world.size() == 1
                                ? make_self_communicator(*backend)
                                : make_communicator(world, *backend, options.symmetric, options.comm_ctas);
  TrainerOptions trainer_options = ddptrain::trainer_options(options, world.size(), 1'000'000);
  trainer_options.graph = true;  // parts are what the device takes
  Trainer trainer(trainer_options, data, world, *backend, *communicator);
  const bool data_in_forward = gpu && options.fused;
  std::unique_ptr<InputSteps> input;
  if (!data_in_forward) input = std::make_unique<InputSteps>(data, trainer.sampler(), options, *backend);
  const StepTimes times = profile_step(trainer, input ? &input->steps() : nullptr, world, *backend);

  const bool graph = options.graph && gpu;
  print(world, fmt::format("# {}, batch {} x {} per rank, {} ranks on {} nodes, {}, {}\n", options.model, options.batch,
                           options.grad_accum, world.size(), world.nodes(), name_of(backend->precision()),
                           backend->device_name()));
  Json result = {{"benchmark", "step"},
                 {"model", options.model},
                 {"device", backend->device_name()},
                 {"precision", name_of(backend->precision())},
                 {"ranks", world.size()},
                 {"nodes", world.nodes()},
                 {"batch_per_rank", options.batch},
                 {"grad_accum", options.grad_accum},
                 {"graph", graph},
                 {"communication_alone_us", 1e6 * times.communication},
                 {"step_without_graph_us", 1e6 * times.eager_step},
                 {"rounds", times.rounds}};
  result["results"] = show(world, times, graph || !gpu, data_in_forward);
  print(world, fmt::format("# communication alone {} us\n", microseconds(times.communication)));
  if (gpu) print(world, fmt::format("# step launched kernel by kernel {} us\n", microseconds(times.eager_step)));
  file.write(result);
}

}  // namespace ddptrain::bench
