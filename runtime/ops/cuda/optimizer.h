#pragma once

#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/optimizer.h"

namespace ddptrain {

class CudaOptimizer final : public OptimizerOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void advance(StepState* state, std::uint32_t steps, Stream stream) override;
  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) override;
  std::size_t inbox_bytes(OptimizerKind kind, const UpdateSlice& slice, int ranks) const override;
  void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                      StepRef step, Stream stream) override;
  void sum_of_squares(const Tensor& values, float* sum, Stream stream) override;
  void clip_scale(const Tensor& squares, float max_norm, float* scale, Stream stream) override;

 private:
  cuda::Scratch compute_scratch_;  ///< Of sum_of_squares, for each stream it may run on.
  cuda::Scratch communication_scratch_;
};

}  // namespace ddptrain
