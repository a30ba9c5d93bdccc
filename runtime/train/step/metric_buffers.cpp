#include "runtime/train/step/metric_buffers.h"

#include "runtime/ops/reduction.h"

namespace ddptrain {

MetricBuffers::MetricBuffers(const VirtualRanks& ranks, bool may_skip, const World& replicas, Device& device)
    : ranks_(ranks),
      count_(ranks.count),
      may_skip_(may_skip),
      replicas_(replicas),
      device_(device),
      sums_(device.allocate(4 * static_cast<std::size_t>(ranks.count) * sizeof(MetricSums))) {}

MetricSums* MetricBuffers::at(Kind kind, std::int64_t i) const {
  return static_cast<MetricSums*>(sums_.data()) + static_cast<std::int64_t>(kind) * count_ + i;
}

void MetricBuffers::finish_step(StepRef step) {
  if (!may_skip_) return;
  auto& ops = device_.get<ReductionOps>();
  for (std::int64_t i = 0; i < count_; ++i) {
    ops.add_unless_left_out(step, at(Kind::step, i), at(Kind::training, i), device_.compute_stream());
  }
}

void MetricBuffers::set_training(std::vector<MetricSums> sums) {
  sums.resize(count());
  device_.copy_to_device(at(Kind::training, 0), sums.data(), bytes());
}

void MetricBuffers::mark_training() {
  device_.copy(at(Kind::marked, 0), at(Kind::training, 0), bytes(), device_.compute_stream());
}

MetricSums MetricBuffers::since_mark() const {
  std::vector<MetricSums> sums = training();
  const std::vector<MetricSums> before = read(Kind::marked);
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] - before[i];
  return totals(sums).front();
}

std::vector<MetricSums> MetricBuffers::read(Kind kind) const {
  std::vector<MetricSums> values(count());
  device_.copy_to_host(values.data(), at(kind, 0), bytes());
  return values;
}

MetricSums MetricBuffers::take(Kind kind) {
  const std::vector<MetricSums> mine = read(kind);
  device_.zero(at(kind, 0), bytes(), device_.compute_stream());
  return totals(mine).front();
}

std::vector<MetricSums> MetricBuffers::totals(const std::vector<MetricSums>& mine) const {
  const std::vector<MetricSums> all = replicas_.all_gather(mine);
  const auto ranks = static_cast<std::size_t>(replicas_.size());
  std::vector<MetricSums> totals(mine.size() / count());
  for (std::size_t state = 0; state < totals.size(); ++state) {
    for (std::size_t k = 0; k < ranks * count(); ++k) {
      const std::size_t rank = ranks_.stride > 1 ? k % ranks : k / count();
      const std::size_t local_index = ranks_.stride > 1 ? k / ranks : k % count();
      totals[state] = totals[state] + all[rank * mine.size() + state * count() + local_index];
    }
  }
  return totals;
}

}  // namespace ddptrain
