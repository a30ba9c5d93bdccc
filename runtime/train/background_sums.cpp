#include "runtime/train/background_sums.h"

#include <algorithm>

namespace ddptrain {

BackgroundSums::BackgroundSums(const ParameterArena& arena, Communicator& communicator, Device& device)
    : arena_(arena), communicator_(communicator), device_(device) {
  std::size_t bytes = 0;
  for (std::size_t bucket = 0; bucket < arena.plan().buckets.size(); ++bucket) {
    bytes = std::max(bytes, arena.bucket_gradients(bucket).bytes());
  }
  values_ = device.allocate(bytes);
}

void BackgroundSums::start(std::uint64_t steps) {
  left_ = steps * arena_.plan().buckets.size();
  start_next();
}

void BackgroundSums::start_next() {
  const Tensor like = arena_.bucket_gradients(left_-- % arena_.plan().buckets.size());
  newest_ = communicator_.all_reduce_sum({values_.data(), like.dtype, like.shape}, device_.communication_stream());
}

void BackgroundSums::go_on() {
  device_.set_progress([this] {
    if (communicator_.test(newest_) && left_ > 0) start_next();
  });
}

void BackgroundSums::finish() {
  communicator_.wait(newest_);
  while (left_ > 0) {
    start_next();
    communicator_.wait(newest_);
  }
}

}  // namespace ddptrain
