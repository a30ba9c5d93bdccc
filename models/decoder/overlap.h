#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// When weight gradients of the head and of block 0 are computed. Nothing waits for them. Small batches leave a GPU
/// with room, so these gradients are computed at the same time as later work. Large batches fill the GPU: the head
/// computes its gradient piece by piece in the forward pass, and the gradients of block 0 come last, where they hide
/// the all-reduce of the embeddings.
class Overlap {
 public:
  Overlap(Device& device, bool batches_are_small) : device_(device), overlaps_(batches_are_small) {}

  bool overlaps() const { return overlaps_; }
  /// Small batches: queues `work`, which runs at the same time as the work that is queued until wait(). Large batches:
  /// does nothing. `work` may be queued as late as in wait().
  void start(const std::function<void()>& work) {
    if (overlaps_) device_.run_concurrently(work);
  }
  void wait() {
    if (overlaps_) device_.wait_concurrent();
  }
  /// Keeps the parameters that overlapping work reports, until report().
  Model::Ready keep_ready() {
    return [this](std::size_t parameter) { ready_.push_back(parameter); };
  }
  void report(const Model::Ready& ready) {
    for (const std::size_t parameter : ready_) ready(parameter);
    ready_.clear();
  }

 private:
  Device& device_;
  bool overlaps_;
  std::vector<std::size_t> ready_;
};

}  // namespace ddptrain
