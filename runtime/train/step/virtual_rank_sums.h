#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// Adds the gradients of a rank's virtual ranks, which it computes one after the other, over a binary tree: neighbours
/// in pairs, these sums in pairs, and so on. Leaves have the type of gradients, sums the type of master weights.
class VirtualRankSums {
 public:
  /// `count`: virtual ranks of this rank; a power of two, else Error. `wide`: what is sent has the type of sums, not of
  /// gradients. The arena outlives this.
  VirtualRankSums(const ParameterArena& arena, std::int64_t count, bool wide);

  /// Takes the gradients of virtual rank `i` (any but the last) on the compute stream, which may then begin the
  /// backward pass of the next one.
  void keep(std::int64_t i);
  /// After the last virtual rank's gradients of a bucket are complete, in the order of `stream`: adds all. The sum,
  /// rounded once, takes the place of the bucket's gradients.
  void fold(std::size_t bucket, Stream stream);
  /// The same for a sum that is sent to other ranks. If wide, it is not rounded and lies in memory of this object.
  Tensor fold_to_send(std::size_t bucket, Stream stream);

  bool wide() const { return wide_; }
  std::size_t bytes() const { return total_bytes(levels_); }  ///< Of memory.

 private:
  Tensor level(std::size_t i, std::int64_t begin, std::int64_t size) const;
  void fold_into(const Tensor& root, std::size_t bucket, Stream stream);
  DType type_of(std::size_t level) const { return level == 0 ? arena_.gradient_type() : sum_type_; }

  const ParameterArena& arena_;
  std::int64_t count_;
  Device& device_;
  ReductionOps& ops_;
  bool wide_;
  DType sum_type_;
  std::size_t depth_;
  std::vector<Buffer> levels_;  ///< [i]: the sum of 2^i virtual ranks, until that of their neighbours is complete.
};

}  // namespace ddptrain
