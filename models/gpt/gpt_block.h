#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/gpt/shape.h"
#include "models/layers/attention.h"
#include "models/layers/feed_forward.h"

namespace ddptrain {

/// One block: attention, then the MLP.
class GptBlock {
 public:
  static constexpr std::size_t kParameters = 2 * Sublayer::kParameters;
  static constexpr std::size_t kScales = 2 * Sublayer::kScales;

  /// Makes one of `parts` parts of a block, with memory for its activations. `others` are the blocks before it; it
  /// shares their memory for recomputed activations. `fp8`: its linear layers can use FP8.
  static GptBlock make(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute, bool fp8,
                       const std::vector<GptBlock>& others, Activations& memory) {
    const bool shares = !others.empty() && recompute == Recompute::block;
    GptBlock block = shares ? others.front() : GptBlock(device, shape, parts, recompute);
    if (!shares) {
      block.attention_.allocate(memory, fp8);
      block.mlp_.norm().input = memory.part(shape.width);
      block.mlp_.allocate(memory);
      if (others.empty() || recompute == Recompute::none) {
        block.mlp_.allocate_hidden(memory);
      } else {
        block.mlp_.share_hidden(others.front().mlp_);
      }
    }
    block.norm().input = memory.part(shape.width);
    if (fp8) {
      block.attention_.prepare_fp8(memory);
      block.mlp_.prepare_fp8(memory);
    }
    return block;
  }

  /// `first` is the index of the block's first parameter among the model's parameters.
  void bind(const ModelTensors& tensors, std::size_t first) {
    mlp_.bind(tensors, first);
    attention_.bind(tensors, first + Sublayer::kParameters);
  }
  /// Uses the scales from index `first` on, layer by layer.
  void bind_scales(Fp8Scales& scales, std::size_t first) {
    attention_.bind_scales(scales, first);
    mlp_.bind_scales(scales, first + Sublayer::kScales);
  }
  /// Whether the linear layers use FP8. Takes effect in the next forward pass.
  void set_fp8(bool fp8) {
    attention_.set_fp8(fp8);
    mlp_.set_fp8(fp8);
  }
  void fit(const BatchShape& shape) {
    attention_.fit(shape);
    mlp_.fit(shape);
  }

  Norm& norm() { return attention_.norm(); }  ///< The first norm of the block.
  Sublayer& attention() { return attention_; }
  Sublayer& mlp() { return mlp_; }

  /// Computes `branch` from norm()'s output. mlp().add() adds it to the residual stream.
  void forward(const Tensor& branch) {
    if (mlp_.fp8()) {
      const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "weights to FP8");
      attention_.convert_weights();
      mlp_.convert_weights();
    }
    attention_.forward(branch);
    attention_.add(branch, mlp_.norm());
    mlp_.forward(branch);
  }
  /// Computes the activations that were not kept again, with the same bits.
  void restore(const Tensor& branch) {
    if (recompute_ == Recompute::gelu) mlp_.restore_gelu();
    if (recompute_ != Recompute::block) return;
    norm().forward();
    attention_.forward(branch);
    attention_.add(branch, mlp_.norm());
    mlp_.expand();
  }

 private:
  GptBlock(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute)
      : device_(device),
        recompute_(recompute),
        attention_(device, shape.width, shape.heads, parts, static_cast<float>(shape.norm_epsilon)),
        mlp_(device, shape.width, shape.feed_forward, parts, static_cast<float>(shape.norm_epsilon),
             recompute == Recompute::gelu) {}

  Device& device_;
  Recompute recompute_;
  Attention attention_;
  FeedForward mlp_;
};

}  // namespace ddptrain
