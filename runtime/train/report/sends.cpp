#include "runtime/train/report/sends.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/comm/meta_communicator.h"
#include "runtime/ops/meta_device.h"
#include "runtime/train/step/store/weight_store.h"
#include "runtime/train/step/whole/matrix_directions.h"

namespace ddptrain {
namespace {

/// With --zero 3: the all-gathers of a step, counted by acquiring the units in the order of the step.
Called gathers_of_units(const ParameterArena& arena, const MeshShape& mesh, int rank, const StepOrder& order) {
  const std::unique_ptr<Device> meta = make_meta_device({}, DeviceKind::cpu);
  Called gathers;
  const auto ranks = make_meta_communicator(mesh.replica_of(rank), mesh.replicas, *meta, gathers);
  const std::unique_ptr<WeightStore> weights = make_sharded_weights(arena, *meta, *ranks);
  for (const Action& action : order.actions) {
    for (const UnitTurn& turn : order.turns_of(action)) weights->acquire(turn.unit, turn.next);
  }
  return gathers;
}

Sent gathers_of(const ParameterArena& arena, const MeshShape& mesh, int rank, const StepOrder& order) {
  if (arena.zero() < Zero::weights) {
    const auto size = static_cast<std::int64_t>(size_of(arena.weights().front().dtype));
    return {"gather", "update", std::ssize(arena.plan().buckets), arena.plan().size * size};
  }
  const Called gathers = gathers_of_units(arena, mesh, rank, order);
  return {"gather", "use", gathers.times, gathers.bytes};
}

/// How often a step reduces each bucket.
std::int64_t reductions_of(const ParameterArena& arena, const StepOrder& order) {
  const bool sums_every_pass = arena.zero() >= Zero::gradients;
  return std::ranges::count_if(order.passes,
                               [&](const Pass& pass) { return is_reduced(pass.ends_step, sums_every_pass); });
}

}  // namespace

std::vector<Sent> sends_of(const Model& model, const ParameterArena& arena, const MeshShape& mesh, int rank,
                           const StepOrder& order, std::int64_t gradient_bytes, bool whole_matrices) {
  std::vector<Sent> sends;
  const auto add = [&](Sent sent, double ring = 1.0) {
    sent.bytes = std::llround(static_cast<double>(sent.bytes) * ring);
    if (sent.bytes > 0) sends.push_back(std::move(sent));
  };
  const double others = static_cast<double>(mesh.replicas - 1) / mesh.replicas;
  const bool divided = arena.zero() > Zero::nothing;
  const std::int64_t sums = reductions_of(arena, order);
  add({"data", "backward", sums * std::ssize(arena.plan().buckets), sums * gradient_bytes},
      divided ? others : 2.0 * others);
  if (divided && gradient_bytes > 0) add(gathers_of(arena, mesh, rank, order), others);
  if (whole_matrices && gradient_bytes > 0) add(MatrixDirections::sends(arena), others);
  for (Sent& sent : model.sends(std::ssize(order.passes))) add(std::move(sent));
  return sends;
}

std::vector<Sent> most_of(const std::vector<std::vector<Sent>>& of_ranks) {
  std::vector<Sent> most;
  for (const std::vector<Sent>& sends : of_ranks) {
    for (const Sent& sent : sends) {
      const auto same = std::find_if(most.begin(), most.end(), [&](const Sent& other) {
        return other.axis == sent.axis && other.when == sent.when;
      });
      if (same == most.end()) {
        most.push_back(sent);
      } else if (same->bytes < sent.bytes) {
        *same = sent;
      }
    }
  }
  return most;
}

}  // namespace ddptrain
