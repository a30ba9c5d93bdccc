#pragma once

#include <optional>
#include <vector>

#include "runtime/device/device.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/weight_store.h"

namespace ddptrain {

/// The range of a bucket whose parameters a stage has: elements [begin, begin + size) of the bucket.
struct StageRange {
  int stage = 0;
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// The norm of the whole gradient. It adds the sums of squares of all buckets, or of all chunks if the arena has whole
/// chunks. The stages of a pipeline form the sums of one rank: if they share a bucket, the stage with its last
/// parameter collects the gradients of the others. So a pipeline clips by the same bits as one rank.
class GradientNorm {
 public:
  /// `pipeline` connects the ranks with the rest of the gradient; null: this rank has all of it. Arena and pipeline
  /// outlive the object. Collective among these ranks.
  GradientNorm(const ParameterArena& arena, Pipeline* pipeline);

  /// Call it before the first bucket of a step.
  void begin();
  /// Adds the squares of this rank's shard of a bucket's reduced gradients, which stay as they are until finish(). CPUs
  /// add them at once, while other buckets are on their way. GPUs add all of them together in finish().
  void add(std::size_t bucket);
  /// Call it after the last bucket, whose gradients are reduced in the order of the compute stream. Adds the squares of
  /// all ranks, on the compute stream. Collective.
  void finish(WeightStore& weights);

  /// Of a GradientNorm of this arena, without the sums of squares of other stages and tensor ranks.
  static std::size_t bytes(const ParameterArena& arena);

  Tensor squares() const;                                                             ///< f32, of all stages.
  float* clip_scale() const { return static_cast<float*>(memory_.data()) + count_; }  ///< In device memory.
  double value() const;  ///< NaN or infinite if the gradient is. Waits.

 private:
  /// A bucket of this stage of which other stages have parameters, too.
  struct SharedBucket {
    std::size_t bucket = 0;
    std::size_t number = 0;          ///< Among the buckets of all stages.
    std::vector<StageRange> ranges;  ///< From the last stage to the one that adds the squares.

    int adder() const { return ranges.back().stage; }
  };

  void count_squares();
  void find_shared_buckets();
  std::size_t number_of(std::size_t bucket) const;
  void add_waiting();
  void add_shared_buckets();

  const ParameterArena& arena_;
  Device& device_;
  ReductionOps& ops_;
  Pipeline* pipeline_;
  std::size_t first_ = 0;             ///< Index of this stage's first sum of squares.
  std::size_t count_ = 0;             ///< Number of sums over all stages.
  Buffer memory_;                     ///< f32: squares(), then the scale.
  std::vector<std::size_t> waiting_;  ///< Buckets whose squares are still to be added.
  std::vector<SharedBucket> shared_;  ///< At most two: the stage's first bucket and its last.
  Buffer collected_;                  ///< The gradients of the shared bucket whose squares this stage adds.
  Buffer sent_;                       ///< A copy of what this stage sends: NCCL may have registered the gradients.
};

}  // namespace ddptrain
