#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// Adds the gradients of this rank's virtual ranks in a binary tree. The rank computes them one after another. Leaves
/// have the type of gradients, sums the type of master weights.
class VirtualRankSums {
 public:
  /// `count` is the number of this rank's virtual ranks. Error unless it is a power of two. `wide`: the sum that is
  /// sent to other ranks has the type of sums instead of gradients. The arena outlives the object.
  VirtualRankSums(const ParameterArena& arena, std::int64_t count, bool wide);

  /// Stores the gradients of virtual rank `i`, which is not the last, on the compute stream. Then the backward pass of
  /// the next virtual rank may begin.
  void keep(std::int64_t i);
  /// Adds all virtual ranks' gradients of a bucket when the last ones are complete in the order of `stream`. If
  /// `is_sent`, the sum is in sent(). Otherwise it is rounded once and replaces the bucket's gradients.
  void fold(std::size_t bucket, Stream stream, bool is_sent);
  /// Where fold() writes the sum of a bucket that is sent: this object's memory if wide, otherwise the gradients.
  Tensor sent(std::size_t bucket) const;

  bool wide() const { return wide_; }
  std::size_t bytes() const { return total_bytes(levels_); }  ///< Device memory.

 private:
  Tensor level(std::size_t i, std::int64_t begin, std::int64_t size) const;
  DType type_of(std::size_t level) const { return level == 0 ? arena_.gradient_type() : sum_type_; }

  const ParameterArena& arena_;
  std::int64_t count_;
  Device& device_;
  ReductionOps& ops_;
  bool wide_;
  DType sum_type_;
  std::size_t depth_;
  std::vector<Buffer> levels_;  ///< [i]: the sum of 2^i virtual ranks, kept until the next 2^i are complete.
};

}  // namespace ddptrain
