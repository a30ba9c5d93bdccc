#pragma once

#include <cstdint>
#include <memory>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/tuned_choices.h"
#include "runtime/ops/shapes.h"

namespace ddptrain::cuda {

/// See AttentionOps. Rows of qkv have all queries, then all keys, then all values.
struct AttentionTensors {
  void* qkv = nullptr;
  void* out = nullptr;
  float* statistics = nullptr;
  void* d_output = nullptr;  ///< The backward pass alone, like dqkv.
  void* dqkv = nullptr;
};

/// Attention by cuDNN, bf16 with f32 sums, planned when a shape is first seen.
class AttentionPlans {
 public:
  /// `scratch` serves as workspace. `choices`: if it is not null, all plans of cuDNN are timed, or the one that was
  /// kept is taken; else the first one. Not while `stream` is being captured.
  AttentionPlans(cudaStream_t stream, Scratch& scratch, TunedChoices* choices = nullptr);
  ~AttentionPlans();

  /// False, and nothing is queued, where cuDNN has no algorithm for the shape.
  bool forward(const AttentionShape& shape, const AttentionTensors& tensors);
  /// By the deterministic algorithm.
  bool backward(const AttentionShape& shape, const AttentionTensors& tensors);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain::cuda
