#include "runtime/train/step/gradient_norm.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace ddptrain {

GradientNorm::GradientNorm(const ParameterArena& arena, Pipeline* pipeline)
    : arena_(arena),
      device_(arena.device()),
      ops_(device_.get<ReductionOps>()),
      pipeline_(pipeline),
      count_(arena.whole_chunks() ? static_cast<std::size_t>(arena.square_count()) : arena.plan().buckets.size()) {
  if (pipeline != nullptr) {
    if (const TensorGroup* group = pipeline->stages().group) {  // ranks may have parts of different sizes
      count_ = static_cast<std::size_t>(group->world().max(static_cast<double>(count_)));
    }
    const StageShare share = share_of(pipeline->stages(), static_cast<std::int64_t>(count_));
    first_ = static_cast<std::size_t>(share.before);
    count_ = static_cast<std::size_t>(share.all);
  }
  memory_ = device_.allocate((count_ + 1) * sizeof(float));
}

Tensor GradientNorm::squares() const { return memory_.view(DType::f32, {static_cast<std::int64_t>(count_)}); }

/// This rank writes the sums of its own chunks and leaves zeros for the chunks of other ranks and stages. Adding all
/// ranks' arrays gives every sum. If ranks split a layer, their sums of one chunk are added, too.
void GradientNorm::begin() {
  const bool has_others = pipeline_ != nullptr && pipeline_->stages().count() > 1;
  if (arena_.whole_chunks() || has_others) device_.zero(squares().data, squares().bytes(), device_.compute_stream());
}

void GradientNorm::add(std::size_t bucket, Stream stream) {
  float* const own = squares().as<float>() + first_;
  if (arena_.whole_chunks()) {
    ops_.chunk_squares(arena_.update_slice(bucket), arena_.first_square(), own, stream);
  } else {
    ops_.sum_of_squares(arena_.reduced_gradients(bucket), own + bucket, stream);
  }
}

void GradientNorm::finish(WeightStore& weights) {
  if (Communicator* parts = weights.parts()) {
    parts->wait(parts->all_reduce_sum(squares(), device_.compute_stream()));
  }
  if (pipeline_ != nullptr) pipeline_->sum_over_replica(squares());
}

double GradientNorm::value() const {
  std::vector<float> sums(count_);
  device_.copy_to_host(sums.data(), squares().data, squares().bytes());
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace ddptrain
