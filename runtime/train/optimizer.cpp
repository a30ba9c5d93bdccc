#include "runtime/train/optimizer.h"

#include "runtime/core/nvtx.h"

namespace ddptrain {

Optimizer::Optimizer(const OptimizerSettings& settings, float clip_norm, const ParameterArena& arena, Backend& backend)
    : settings_(settings), clip_norm_(clip_norm), arena_(arena), backend_(backend) {
  if (clip_norm_ > 0.0f) clip_ = backend_.allocate(2 * sizeof(float));
}

void Optimizer::bucket_reduced(std::size_t bucket, Stream stream) {
  if (clip_norm_ <= 0.0f) update(bucket, stream);
}

void Optimizer::finish_step() {
  if (clip_norm_ <= 0.0f) return;
  const Stream stream = backend_.compute_stream();
  auto* sum = static_cast<float*>(clip_.data());
  const std::size_t buckets = arena_.plan().buckets.size();
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) {
    backend_.sum_of_squares(arena_.bucket_gradients(bucket), sum, bucket > 0, stream);
  }
  backend_.clip_scale(sum, clip_norm_, sum + 1, stream);
  for (std::size_t bucket = 0; bucket < buckets; ++bucket) update(bucket, stream);
}

void Optimizer::update(std::size_t bucket, Stream stream) {
  const NvtxRange range("optimizer");
  UpdateSlice slice = arena_.update_slice(bucket);
  if (clip_norm_ > 0.0f) slice.gradient_scale = static_cast<const float*>(clip_.data()) + 1;
  backend_.update(settings_, slice, step_, stream);
}

}  // namespace ddptrain
