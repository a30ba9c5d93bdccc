#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/ops/terms.h"

namespace ddptrain {

/// *sum (f32) = sum of the squares of `values`, of bf16 or the type of master weights.
struct SumOfSquares {
  Tensor values;
  float* sum = nullptr;
};

/// Sums of gradients: of squares for their norm, and over ranks in a fixed order, also in the memory of other ranks.
/// All pointers are memory of the device.
class ReductionOps : public Family<ReductionOps> {
 public:
  /// Computes all `sums`, on the compute stream. Their values have one type. The bits of a sum do not depend on the
  /// others.
  virtual void sums_of_squares(const std::vector<SumOfSquares>& sums) = 0;
  /// squares[first_square[p] + i] (f32) = sum of squares of chunk i of parameter p, which begins at its element i *
  /// kChunkElements, for every chunk of the slices, on the compute stream. The slices' gradients have one type. The
  /// bits depend neither on buckets nor on shards. Parameters whose first_square is kNotCounted are left out.
  static constexpr std::uint32_t kNotCounted = ~std::uint32_t{0};
  virtual void chunk_squares(const std::vector<UpdateSlice>& slices, const std::uint32_t* first_square,
                             float* squares) = 0;
  /// *scale = min(1, max_norm / (norm + 1e-6)), or 1 if max_norm is 0; norm = square root of the sum of all `squares`
  /// (f32). If the norm is not finite, *scale is NaN, and *found counts the step (see step_scale). Logs the norm
  /// (StepLog).
  virtual void clip_scale(const Tensor& squares, float max_norm, StepRef step, NonFinite* found, float* scale,
                          Stream stream) = 0;
  /// Logs the norm of the newest step that has ended (StepLog), from the squares of its gradient as in clip_scale().
  /// The time since that step counts as a pause.
  virtual void log_norm(const Tensor& squares, StepState* state, Stream stream) = 0;
  /// Adds *mine to *total unless the newest clip_scale() has left its step out; *mine = {}. Logs *total (StepLog).
  virtual void add_unless_left_out(StepRef step, MetricSums* mine, MetricSums* total, Stream stream) = 0;

  /// sum = nodes[n - 1] + (... + (nodes[1] + nodes[0])), each addition in the type of master weights, rounded once to
  /// the type of `sum`, which may be one of the nodes. All are of bf16 or the type of master weights.
  virtual void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, Stream stream) = 0;
  /// Adds all terms to the first, and returns it.
  Tensor add_up(const Terms& terms, Stream stream) {
    if (!terms.others().empty()) add_nodes(terms.all(), terms.first(), stream);
    return terms.first();
  }
  /// sum [count] = the sum of the rows of `leaves` [rows, count] over a binary tree: neighbours in pairs, these sums in
  /// pairs, and so on, each addition in the type of master weights, rounded once to the type of `sum`. Types are those
  /// of add_nodes(). Error unless the number of rows is a power of two.
  virtual void add_tree(const Tensor& leaves, const Tensor& sum, Stream stream) = 0;

  /// Bytes of zeroed memory that meet() needs on each rank. 0 on CPUs, which have no meet().
  virtual std::size_t meeting_bytes() const = 0;
  /// Work queued on `stream` behind this begins when all ranks have done the work queued before it, and sees what they
  /// wrote into each other's memory. Collective: the ranks' GPUs wait for each other.
  virtual void meet(const PeerInboxes& peers, Stream stream) = 0;

  static std::unique_ptr<ReductionOps> on_cpu(Device& device);
  static std::unique_ptr<ReductionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
