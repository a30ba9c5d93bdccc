#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "runtime/core/tensor.h"
#include "runtime/device/gpu_properties.h"
#include "runtime/ops/shapes.h"

namespace ddptrain {

/// Implementations of attention on GPUs (runtime/ops/cuda/attention/).
enum class AttentionKernels : std::uint8_t {
  heads_of_64,   ///< attention_wgmma.cu, a backward pass. A thread block takes a whole head.
  heads_of_128,  ///< attention_forward_128.cu and attention_wgmma_128.cu
  cudnn,         ///< cuDNN, or one of the next two if it has no algorithm for the shape.
  short_texts,   ///< attention_short.cu, a backward pass. A thread block takes a whole head.
  others,        ///< attention_mma.cu and attention_kernels.cu. Backward, they read the deltas of attention_deltas().
};

/// The kernels that compute the forward pass for a shape, if tensors are aligned to 16 bytes.
AttentionKernels plan_attention_forward(const AttentionShape& shape, DType dtype, const GpuProperties& gpu);

/// How a GPU computes the backward pass for one shape.
struct AttentionBackwardPlan {
  AttentionKernels kernels = AttentionKernels::others;
  /// AttentionKernels::heads_of_128: of the heads of queries that share a key. Bits of the results depend on it.
  int parts = 1;
  /// Device memory for intermediate results. All layers use the same memory, one after the other. For cuDNN, what
  /// version 9.14 took on an H200.
  std::size_t scratch_bytes = 0;
};

/// The plan of a shape, for tensors that are aligned to 16 bytes. It depends on nothing else and needs no GPU, so that
/// --dry-run predicts the memory that a run takes.
AttentionBackwardPlan plan_attention_backward(const AttentionShape& shape, DType dtype, const GpuProperties& gpu);

/// Parts of that plan, for tests of kernels. For heads of 64 or 128 and sequences that are multiples of 128, also if
/// other kernels are faster. `multiprocessors`: all of the GPU.
AttentionBackwardPlan plan_for_heads_of_64(const AttentionShape& shape, int multiprocessors);
AttentionBackwardPlan plan_for_heads_of_128(const AttentionShape& shape, int multiprocessors);

/// Shapes that cuDNN computes well. Before version 9.15.1 other lengths are wrong when a captured graph is replayed.
bool suits_cudnn_attention(const AttentionShape& shape, DType dtype);
/// Shapes of AttentionKernels::short_texts: fewer than 128 tokens, or 128 if cuDNN has no algorithm; heads of at most
/// 128 and a multiple of 8, which share no keys, and of which one fits shared memory.
bool suits_short_attention(const AttentionShape& shape, DType dtype, const GpuProperties& gpu);

/// An f32 per head and query.
inline std::size_t attention_deltas_bytes(const AttentionShape& shape) {
  return sizeof(float) * static_cast<std::size_t>(shape.batch * shape.heads * shape.sequence);
}

/// The plans of a device. Each is made when its shape is first seen.
class AttentionBackwardPlans {
 public:
  using Make = std::function<AttentionBackwardPlan(const AttentionShape&)>;

  explicit AttentionBackwardPlans(Make make) : make_(std::move(make)) {}

  const AttentionBackwardPlan& of(const AttentionShape& shape) {
    auto found = plans_.find(shape);
    if (found == plans_.end()) found = plans_.emplace(shape, make_(shape)).first;
    return found->second;
  }

 private:
  Make make_;
  std::map<AttentionShape, AttentionBackwardPlan> plans_;
};

}  // namespace ddptrain
