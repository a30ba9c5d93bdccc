#include "launch/app/tasks/tasks.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/train/step/distributed_sampler.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/training_state.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

ArenaOptions arena_without_optimizer(const Options& options, const Model& model, int world_size) {
  ArenaOptions arena = arena_options(trainer_options(options, world_size, 1), model.units());
  arena.optimizer_slots = 0;
  arena.zero = Zero::nothing;
  return arena;
}

/// Bound to weights and ready to compute.
struct LoadedModel {
  LoadedModel(std::unique_ptr<Model> made, const World& world, const Options& options, Device& device,
              Communicator& communicator)
      : model(std::move(made)),
        arena(model->parameters(), arena_without_optimizer(options, *model, world.size()), device, communicator),
        state(arena, model->buffers()) {
    model->bind({arena.weights(), arena.gradients(), state.buffers()});
    arena.initialise(options.trainer.seed, world.rank());
  }

  std::unique_ptr<Model> model;
  ParameterArena arena;
  TrainingState state;
};

/// The sums of a rank's share.
MetricSums evaluate_share(const LoadedModel& loaded, const Dataset& data, const EvaluationShard& share,
                          std::int64_t batch, Device& device) {
  const Buffer sums = device.allocate(sizeof(MetricSums));
  const std::vector<Slice> slices = evaluation_slices(loaded.state.step(), data.test_count(), share, batch);
  std::uint32_t done = 0;
  for (const Slice& slice : slices) {
    device.watch().set_part(done++, static_cast<std::uint32_t>(slices.size()));
    run_forward(*loaded.model, {slice, static_cast<MetricSums*>(sums.data()), false});
  }
  MetricSums result;
  device.copy_to_host(&result, sums.data(), sizeof(MetricSums));
  return result;
}

Json evaluated_line(const World& world, const Options& options, const Workload& workload, const Device& device,
                    const LoadedModel& loaded) {
  Json line = {
      {"event", "evaluated"},         {"version", DDPTRAIN_VERSION},
      {"model", options.model},       {"device", device.kind() == DeviceKind::cuda ? "cuda" : "cpu"},
      {"device_name", device.name()}, {"precision", device.options().fp8 ? "fp8" : name_of(device.precision())},
      {"world_size", world.size()},   {"parameters", element_count(loaded.arena.specs())}};
  for (const auto& [name, size] : workload.sizes()) line[name] = size;
  return line;
}

}  // namespace

void evaluate_model(const World& world, const Options& options, Workload& workload, Device& device,
                    Communicator& communicator, MetricsFile* metrics) {
  using Clock = std::chrono::steady_clock;
  const std::int64_t batch = options.trainer.batch;
  std::unique_ptr<Model> model;
  world.agree([&] { model = workload.make_model(device, batch); });
  const LoadedModel loaded(std::move(model), world, options, device, communicator);
  const Dataset& data = workload.data();
  const std::int64_t most = options.run.eval_samples;
  const std::int64_t samples = most > 0 ? std::min(most, data.test_count()) : data.test_count();
  const EvaluationShard share = DistributedSampler::evaluation(samples, world.rank(), world.size());
  const Watch::Phase phase(*world.watch(), "evaluation");
  const Clock::time_point start = Clock::now();
  const MetricSums mine = evaluate_share(loaded, data, share, batch, device);
  MetricSums sums;
  for (const MetricSums& of_rank : world.all_gather(std::vector{mine})) sums = sums + of_rank;
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const std::string hash = loaded.state.parameter_hash();
  if (world.rank() != 0) return;

  const double loss = sums.mean_loss();
  const std::string unit = loaded.model->unit();
  const bool has_text = unit == "tokens";
  const std::string perplexity = has_text ? fmt::format("  perplexity {:.2f}", std::exp(loss)) : "";
  std::fputs(fmt::format("{} test {}\nloss {:.4f}  accuracy {:.4f}{}\n{:.2f} s\n", sums.samples, unit, loss,
                         sums.accuracy(), perplexity, seconds)
                 .c_str(),
             stdout);
  if (metrics == nullptr) return;
  Json line = evaluated_line(world, options, workload, device, loaded);
  line[unit] = sums.samples;
  line["test_loss"] = loss;
  line["accuracy"] = sums.accuracy();
  if (has_text) line["perplexity"] = std::exp(loss);
  line["seconds"] = seconds;
  line["parameter_hash"] = hash;
  metrics->write(std::move(line));
}

}  // namespace ddptrain
