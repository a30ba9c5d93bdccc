#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizer.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

/// Sums the gradients of V virtual ranks to the same bits on any number W of ranks. The sum goes over one binary tree,
/// whatever W is: neighbours in pairs, these sums in pairs, and so on. Leaves are the virtual ranks' gradients as the
/// arena holds them; sums have the type of master weights; the root is rounded once to the type of gradients. A rank
/// has V / W neighbours, one after the other, and with them a subtree; the levels above it go over the ranks.
///
/// Across ranks, every rank gets one part of each bucket from all others, adds these, and (unless the arena is sharded)
/// all gather the sums: 2 (W - 1) / W of a bucket's bytes per rank, as in an all-reduce by a ring. Where one rank or
/// two leave nothing to order, an all-reduce takes its place.
class GradientTree {
 public:
  /// `neighbours`: V / W. Both it and the number of ranks are powers of two, else Error. All outlive the tree.
  GradientTree(const ParameterArena& arena, std::int64_t neighbours, Device& device, Communicator& communicator);

  std::int64_t neighbours() const { return neighbours_; }
  /// Whether the ranks' subtrees go through exchange(), add() and gather(). Else the sum over ranks of what fold()
  /// leaves has the tree's bits.
  bool exchanges() const { return inbox_.data() != nullptr; }
  std::size_t bytes() const;  ///< Of memory.

  /// Takes the gradients of neighbour `neighbour`, any but the last, on the compute stream, which may then begin with
  /// the next one's backward pass.
  void keep(std::int64_t neighbour);

  /// All of the following: after the last neighbour's gradients of a bucket are complete, in the order of `stream`.
  /// The sum over the neighbours takes the place of the gradients.
  void fold(std::size_t bucket, Stream stream);
  /// Starts to exchange the sums over the neighbours.
  Communicator::Ticket exchange(std::size_t bucket, Stream stream);
  /// Once the exchange is done: the arena's reduced_gradients() (one part of the bucket) = the root of the tree.
  void add(std::size_t bucket, Stream stream);
  /// Behind add(): starts to gather the parts.
  Communicator::Ticket gather(std::size_t bucket, Stream stream);

 private:
  Tensor all_gradients() const;
  Tensor slice(const Buffer& buffer, DType dtype, std::size_t bucket) const;
  Tensor outgoing(std::size_t bucket) const;
  DType type_of(std::size_t level) const { return level == 0 ? arena_.gradient_type() : sum_type_; }
  void fold_into(const Tensor& to, std::size_t bucket, Stream stream);

  const ParameterArena& arena_;
  std::int64_t neighbours_;
  Device& device_;
  OptimizerOps& ops_;
  Communicator& communicator_;
  DType sum_type_;
  std::size_t depth_ = 0;       ///< Of a rank's subtree.
  std::vector<Buffer> levels_;  ///< [i]: of 2^i neighbours, until those beside them are complete.
  DType sent_type_;
  Buffer inbox_;
};

}  // namespace ddptrain
