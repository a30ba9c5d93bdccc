#include "runtime/train/step/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace ddptrain {
namespace {

/// The ranges of a bucket, from the last stage to the first. `counts`: the number of parameters of each stage.
std::vector<StageRange> ranges_by_stage(const BucketPlan& plan, const Bucket& bucket,
                                        const std::vector<std::int64_t>& counts) {
  const std::size_t bucket_end = bucket.first_parameter + bucket.parameter_count;
  std::vector<StageRange> ranges;
  std::size_t end = 0;
  for (int stage = static_cast<int>(counts.size()) - 1; stage >= 0; --stage) {
    const std::size_t first =
        std::exchange(end, end + static_cast<std::size_t>(counts[static_cast<std::size_t>(stage)]));
    const std::size_t from = std::max(first, bucket.first_parameter);
    const std::size_t to = std::min(end, bucket_end);
    if (from >= to) continue;
    const std::int64_t begin = plan.begin[from] - bucket.begin;
    const std::int64_t range_end = to < bucket_end ? plan.begin[to] - bucket.begin : bucket.size;
    ranges.push_back({stage, begin, range_end - begin});
  }
  return ranges;
}

}  // namespace

GradientNorm::GradientNorm(const ParameterArena& arena, Pipeline* pipeline)
    : arena_(arena), device_(arena.device()), ops_(device_.get<ReductionOps>()), pipeline_(pipeline) {
  count_squares();
  memory_ = device_.allocate((count_ + 1) * sizeof(float));
  if (arena_.stage_plan() && pipeline_ != nullptr) find_shared_buckets();
}

std::size_t GradientNorm::bytes(const ParameterArena& arena) {
  const std::vector<Bucket>& mine = arena.plan().buckets;
  const std::size_t squares = arena.whole_chunks() ? static_cast<std::size_t>(arena.square_count()) : mine.size();
  std::int64_t shared = 0;
  if (const auto& plan = arena.stage_plan()) {
    const std::size_t first = plan->first;
    const std::size_t end = first + arena.specs().size();
    const Bucket& first_bucket = plan->all.buckets[plan->all.bucket_of[first]];
    const Bucket& last_bucket = plan->all.buckets[plan->all.bucket_of[end - 1]];
    const bool ends = first_bucket.first_parameter + first_bucket.parameter_count <= end;
    if (first_bucket.first_parameter < first && ends) shared += first_bucket.size;                    // collected
    if (last_bucket.first_parameter + last_bucket.parameter_count > end) shared += mine.back().size;  // sent
  }
  return (squares + 1) * sizeof(float) + static_cast<std::size_t>(shared) * size_of(arena.gradient_type());
}

void GradientNorm::count_squares() {
  if (arena_.stage_plan()) {
    count_ = arena_.stage_plan()->all.buckets.size();
    return;
  }
  count_ = arena_.whole_chunks() ? static_cast<std::size_t>(arena_.square_count()) : arena_.plan().buckets.size();
  if (pipeline_ == nullptr) return;
  if (const TensorGroup* group = pipeline_->stages().tensor) {  // ranks may have slices of different sizes
    count_ = static_cast<std::size_t>(group->ranks().max(static_cast<double>(count_)));
  }
  const StageShare share = share_of(pipeline_->stages(), static_cast<std::int64_t>(count_));
  first_ = static_cast<std::size_t>(share.before);
  count_ = static_cast<std::size_t>(share.all);
}

void GradientNorm::find_shared_buckets() {
  const Stages& stages = pipeline_->stages();
  const BucketPlan& all = arena_.stage_plan()->all;
  const auto mine = static_cast<std::int64_t>(arena_.specs().size());
  const std::vector<std::int64_t> counts = stages.ranks->all_gather(std::vector{mine});
  for (std::size_t bucket = 0; bucket < arena_.plan().buckets.size(); ++bucket) {
    const std::size_t number = number_of(bucket);
    SharedBucket shared{bucket, number, ranges_by_stage(all, all.buckets[number], counts)};
    if (shared.ranges.size() < 2) continue;
    if (shared.adder() == stages.index()) {
      collected_ = device_.allocate(arena_.gradient_type(), {all.buckets[number].size});
      device_.zero(collected_.data(), collected_.bytes(), device_.compute_stream());
    } else {
      sent_ = device_.allocate(arena_.gradient_type(), {arena_.plan().buckets[bucket].size});
    }
    shared_.push_back(std::move(shared));
  }
}

std::size_t GradientNorm::number_of(std::size_t bucket) const {
  const auto& plan = arena_.stage_plan();
  return plan ? plan->number_of(arena_.plan().buckets[bucket].first_parameter) : bucket;
}

Tensor GradientNorm::squares() const { return memory_.view(DType::f32, {static_cast<std::int64_t>(count_)}); }

/// This rank writes the sums of its own chunks and leaves zeros for the chunks of other ranks and stages. Adding all
/// ranks' arrays gives every sum. If ranks split a layer, their sums of one chunk are added, too.
void GradientNorm::begin() {
  const bool has_others = pipeline_ != nullptr && pipeline_->stages().count() > 1;
  if (arena_.whole_chunks() || has_others) device_.zero(squares().data, squares().bytes(), device_.compute_stream());
}

void GradientNorm::add(std::size_t bucket) {
  waiting_.push_back(bucket);
  if (device_.kind() == DeviceKind::cpu) add_waiting();
}

void GradientNorm::add_waiting() {
  float* const own = squares().as<float>() + first_;
  std::vector<UpdateSlice> slices;
  std::vector<SumOfSquares> sums;
  for (const std::size_t bucket : std::exchange(waiting_, {})) {
    if (arena_.whole_chunks()) {
      slices.push_back(arena_.update_slice(bucket));
    } else if (std::ranges::find(shared_, bucket, &SharedBucket::bucket) == shared_.end()) {
      sums.push_back({arena_.reduced_gradients(bucket), own + number_of(bucket)});
    }
  }
  if (!slices.empty()) ops_.chunk_squares(slices, arena_.first_square(), own);
  if (!sums.empty()) ops_.sums_of_squares(sums);
}

/// The stages send their ranges to the one that adds, which puts them together as one rank has them.
void GradientNorm::add_shared_buckets() {
  const int stage = pipeline_->stages().index();
  const DType type = arena_.gradient_type();
  const Stream stream = device_.compute_stream();
  std::vector<Message> sends;
  std::vector<Message> receives;
  for (const SharedBucket& shared : shared_) {
    const Tensor mine = arena_.reduced_gradients(shared.bucket);
    for (const StageRange& range : shared.ranges) {
      if (range.stage != stage && shared.adder() == stage) {
        receives.push_back({collected_.stretch(type, range.begin, range.size), range.stage});
      } else if (range.stage == stage && shared.adder() != stage) {
        const Tensor copy = sent_.stretch(type, 0, range.size);
        device_.copy(copy.data, mine.data, copy.bytes(), stream);
        sends.push_back({copy, shared.adder()});
      } else if (range.stage == stage) {  // what the bucket has more than this stage is padding
        const Tensor own = mine.stretch(0, std::min(range.size, mine.size()));
        device_.copy(collected_.stretch(type, range.begin, own.size()).data, own.data, own.bytes(), stream);
      }
    }
  }
  pipeline_->send_to_stages(sends, receives);
  for (const SharedBucket& shared : shared_) {
    if (shared.adder() != stage) continue;
    const std::int64_t size = arena_.stage_plan()->all.buckets[shared.number].size;
    ops_.sums_of_squares({{collected_.view(type, {size}), squares().as<float>() + shared.number}});
  }
}

void GradientNorm::finish(WeightStore& weights) {
  add_waiting();
  if (!shared_.empty()) add_shared_buckets();
  if (Communicator* ranks = weights.shard_ranks()) {
    ranks->wait(ranks->all_reduce_sum(squares(), device_.compute_stream()));
  }
  if (pipeline_ != nullptr) pipeline_->sum_over_replica(squares());
}

double GradientNorm::value() const {
  std::vector<float> sums(count_);
  device_.copy_to_host(sums.data(), squares().data, squares().bytes());
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace ddptrain
