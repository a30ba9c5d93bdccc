#include "runtime/train/step/gradient_norm.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace ddptrain {

GradientNorm::GradientNorm(const ParameterArena& arena, Device& device)
    : arena_(arena),
      device_(device),
      ops_(device.get<OptimizerOps>()),
      count_(arena.whole_chunks() ? static_cast<std::size_t>(arena.square_count()) : arena.plan().buckets.size()),
      memory_(device.allocate((count_ + 1) * sizeof(float))) {}

Tensor GradientNorm::squares() const { return memory_.view(DType::f32, {static_cast<std::int64_t>(count_)}); }

/// This rank writes the sums of its own chunks; those of others are added to zeros.
void GradientNorm::begin() {
  if (arena_.whole_chunks()) device_.zero(squares().data, squares().bytes(), device_.compute_stream());
}

void GradientNorm::add(std::size_t bucket, Stream stream) {
  if (arena_.whole_chunks()) {
    ops_.chunk_squares(arena_.update_slice(bucket), arena_.first_square(), squares().as<float>(), stream);
  } else {
    ops_.sum_of_squares(arena_.reduced_gradients(bucket), squares().as<float>() + bucket, stream);
  }
}

double GradientNorm::value() const {
  std::vector<float> sums(count_);
  device_.copy_to_host(sums.data(), squares().data, squares().bytes());
  return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
}

}  // namespace ddptrain
