#include "runtime/train/report/sends.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/train/step/schedule.h"

namespace ddptrain {
namespace {

/// The gathers of a step with --zero 3: a place keeps a bucket's weights until another one needs it.
class Gathers {
 public:
  explicit Gathers(const ParameterArena& arena)
      : arena_(arena), units_(arena.units().size()), holds_(arena.plan().buckets.size(), arena.plan().buckets.size()) {}

  void forward() {
    for (std::size_t unit = 0; unit < units_; ++unit) use(unit, unit + 1);
  }
  void backward() {
    for (std::size_t unit = units_; unit-- > 0;) use(unit, unit - 1);
  }
  std::int64_t times() const { return times_; }
  std::int64_t elements() const { return elements_; }

 private:
  void use(std::size_t unit, std::size_t next) {
    gather(unit);
    if (next < units_) gather(next);
  }
  void gather(std::size_t unit) {
    const BucketPlan& plan = arena_.plan();
    std::vector<std::size_t> buckets = buckets_of(plan, arena_.units()[unit]);
    for (const std::size_t parameter : arena_.units()[unit].also_reads) buckets.push_back(plan.bucket_of[parameter]);
    for (const std::size_t bucket : buckets) {
      if (std::exchange(holds_[arena_.weight_places().place[bucket]], bucket) == bucket) continue;
      ++times_;
      elements_ += plan.buckets[bucket].size;
    }
  }

  const ParameterArena& arena_;
  std::size_t units_;
  std::vector<std::size_t> holds_;  ///< By place: its bucket.
  std::int64_t times_ = 0;
  std::int64_t elements_ = 0;
};

Sent gathers_of(const ParameterArena& arena, const MeshShape& mesh, int rank, std::int64_t passes) {
  const auto size = static_cast<std::int64_t>(size_of(arena.weights().front().dtype));
  if (arena.zero() < Zero::weights) {
    return {"gather", "update", std::ssize(arena.plan().buckets), arena.plan().size * size};
  }
  Gathers gathers(arena);
  for (const Action& action : schedule(mesh.stages, mesh.stage_of(rank), passes)) {
    if (action.kind == Action::Kind::forward) gathers.forward();
    if (action.kind == Action::Kind::backward) gathers.backward();
  }
  return {"gather", "use", gathers.times(), gathers.elements() * size};
}

}  // namespace

std::vector<Sent> sends_of(const Model& model, const ParameterArena& arena, const MeshShape& mesh, int rank,
                           std::int64_t passes, std::int64_t gradient_bytes) {
  std::vector<Sent> sends;
  const auto add = [&](Sent sent, double ring = 1.0) {
    sent.bytes = std::llround(static_cast<double>(sent.bytes) * ring);
    if (sent.bytes > 0) sends.push_back(std::move(sent));
  };
  const double others = static_cast<double>(mesh.replicas - 1) / mesh.replicas;
  const bool divided = arena.zero() > Zero::nothing;
  const std::int64_t sums = arena.zero() >= Zero::gradients ? passes : 1;
  add({"data", "backward", sums * std::ssize(arena.plan().buckets), sums * gradient_bytes},
      divided ? others : 2.0 * others);
  if (divided) add(gathers_of(arena, mesh, rank, passes), others);
  const ReplicaTraffic traffic = model.traffic();
  const auto of_step = [&](double of_pass) { return static_cast<std::int64_t>(of_pass) * passes; };
  const auto tied = static_cast<std::int64_t>(traffic.tied_weight);
  add({"pipeline", "forward", passes, of_step(traffic.activations) + tied});
  add({"pipeline", "backward", passes, of_step(traffic.gradients)});
  add({"tensor", "forward", passes * traffic.forward.times, of_step(traffic.forward.bytes)});
  add({"tensor", "backward", passes * traffic.backward.times, of_step(traffic.backward.bytes)});
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
