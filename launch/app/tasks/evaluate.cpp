#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "launch/app/tasks/run_info.h"
#include "launch/app/tasks/tasks.h"
#include "runtime/core/error.h"
#include "runtime/train/replica/evaluator.h"
#include "runtime/train/replica/replica.h"

namespace ddptrain {
namespace {

struct Evaluated {
  MetricSums sums;
  double seconds = 0.0;
};

Evaluated evaluate(const World& world, const RunPlan& plan, Replica& replica, const Dataset& data) {
  using Clock = std::chrono::steady_clock;
  const std::unique_ptr<WeightStore> weights = make_replicated_weights();
  MetricBuffers metrics(replica.ranks(), false, world, replica.device());
  Evaluator evaluator(replica, data.test_count(), plan.trainer.batch, *weights, metrics);
  const Clock::time_point start = Clock::now();
  const MetricSums sums = evaluator.evaluate(plan.run.eval_samples);
  return {sums, std::chrono::duration<double>(Clock::now() - start).count()};
}

/// On rank 0.
void print_evaluated(const MetricSums& sums, const std::string& unit, double seconds) {
  const double loss = sums.mean_loss();
  const std::string perplexity = has_perplexity(unit) ? fmt::format("  perplexity {:.2f}", std::exp(loss)) : "";
  std::fputs(fmt::format("{} test {}\nloss {:.4f}  accuracy {:.4f}{}\n{:.2f} s\n", sums.samples, unit, loss,
                         sums.accuracy(), perplexity, seconds)
                 .c_str(),
             stdout);
}

}  // namespace

void evaluate_model(const World& world, const RunPlan& plan, Workload& workload, Device& device,
                    Communicator& communicator, MetricsFile* metrics) {
  std::unique_ptr<Model> model;
  world.agree([&] { model = workload.make_model(device, plan.trainer.batch); });
  Replica replica(plan.trainer, ReplicaUse::evaluation, std::move(model), device, communicator);
  replica.initialise(plan.trainer.seed, world.rank());
  const Watch::Phase phase(*world.watch(), "evaluation");
  const auto [sums, seconds] = evaluate(world, plan, replica, workload.data());
  const std::string hash = replica.parameter_hash();
  const double loss = sums.mean_loss();
  const std::string unit = replica.model().sample_unit();
  if (world.rank() == 0) print_evaluated(sums, unit, seconds);
  if (metrics != nullptr) {
    nlohmann::ordered_json line = task_line("evaluated", plan, workload, device, replica.model());
    line[unit] = sums.samples;
    line["test_loss"] = loss;
    line["accuracy"] = sums.accuracy();
    if (has_perplexity(unit)) line["perplexity"] = std::exp(loss);
    line["seconds"] = seconds;
    line["parameter_hash"] = hash;
    metrics->write(std::move(line));
  }
  world.agree([&] {
    if (!std::isfinite(loss)) fail("--evaluate: the loss is NaN or infinite; look for such values in the weights");
  });
}

}  // namespace ddptrain
