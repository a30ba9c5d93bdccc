#include "runtime/train/replica/evaluator.h"

#include <algorithm>

#include "runtime/device/queueing.h"

namespace ddptrain {

Evaluator::Evaluator(Replica& replica, std::int64_t test_count, std::int64_t batch, WeightStore& weights,
                     MetricBuffers& metrics)
    : replica_(replica),
      device_(replica.device()),
      test_count_(test_count),
      batch_(batch),
      weights_(weights),
      metrics_(metrics),
      turns_(forward_turns(replica.arena().units().size())) {}

MetricSums Evaluator::evaluate(std::int64_t most) {
  const Watch::Phase phase(device_.watch(), "evaluation");
  device_.finish_unfinished();
  weights_.changed();
  const VirtualRanks& ranks = replica_.ranks();
  const std::int64_t samples = most > 0 ? std::min(most, test_count_) : test_count_;
  const std::int64_t largest_shard = (samples + ranks.all - 1) / ranks.all;
  const auto batches = static_cast<std::size_t>((largest_shard + batch_ - 1) / batch_);
  for (std::int64_t i = 0; i < ranks.count; ++i) {
    replica_.load_buffers(i);
    evaluate(DistributedSampler::evaluation(samples, static_cast<int>(ranks.at(i)), static_cast<int>(ranks.all)),
             batches, metrics_.evaluation(i));
    replica_.save_buffers(i);
  }
  replica_.load_buffers(0);
  return replica_.from_last_stage(metrics_.take_evaluation());
}

/// `batches` is the number of batches of the largest shard. All ranks acquire weights that often.
void Evaluator::evaluate(const EvaluationShard& shard, std::size_t batches, MetricSums* sums) {
  const std::vector<Slice> slices = evaluation_slices(replica_.state().step(), test_count_, shard, batch_);
  const auto mine = static_cast<std::uint32_t>(slices.size());
  for (std::uint32_t done = 0; done < mine; ++done) {
    if (device_.kind() == DeviceKind::cpu) device_.watch().set_part(done, mine);
    forward({slices[done], sums, false}, done);
  }
  for (std::size_t i = slices.size(); i < batches; ++i) {
    const Queueing queueing(device_);
    for (const UnitTurn& turn : turns_) weights_.acquire(turn.unit, turn.next);
  }
}

/// begin() comes first, because the size of the activations depends on the batch.
void Evaluator::forward(const MicroBatch& batch, std::int64_t number) {
  const Queueing queueing(device_);
  const Stages& stages = replica_.stages();
  Model& model = replica_.model();
  const auto the_model = [&model](std::int64_t) -> Model& { return model; };
  model.begin(batch);
  if (stages.index() > 0) replica_.pipeline().exchange({.activations_in = number}, the_model);
  for (const UnitTurn& turn : turns_) {
    weights_.acquire(turn.unit, turn.next);
    model.forward(turn.unit);
  }
  if (!stages.is_last()) replica_.pipeline().exchange({.activations_out = number}, the_model);
}

}  // namespace ddptrain
