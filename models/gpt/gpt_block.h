#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/gpt/shape.h"
#include "models/layers/attention.h"
#include "models/layers/feed_forward.h"

namespace ddptrain {

/// The activations that the backward pass recomputes, so that they need not be kept.
enum class Recompute : std::uint8_t {
  none,
  gelu,   ///< The GELU's output.
  block,  ///< All activations of a block but its input.
};

/// Gradients of activations. All blocks share this memory: the gradient of a block's input is the gradient of the
/// output of the block before it.
struct BlockGradients {
  SublayerGradients mlp, attention;  ///< attention.dout is mlp.din.

  void fit(const BatchShape& shape) {
    mlp.fit(shape);
    attention.fit(shape);
  }
};

/// One block: attention, then the MLP.
class GptBlock {
 public:
  static constexpr std::size_t kParameters = 2 * Sublayer::kParameters;
  static constexpr std::size_t kScales = 2 * Sublayer::kScales;

  /// Makes one of `parts` parts of a block, with memory for its activations. `others` are the blocks before it; it
  /// shares their memory for recomputed activations. `fp8`: its linear layers can use FP8.
  static GptBlock make(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute, bool fp8,
                       const std::vector<GptBlock>& others, Activations& memory);
  /// `first` is the index of the block's first parameter among the model's parameters.
  void bind(const ModelTensors& tensors, std::size_t first);

  /// Uses the scales from index `first` on, layer by layer.
  void bind_scales(Fp8Scales& scales, std::size_t first);
  /// Whether the linear layers use FP8. Takes effect in the next forward pass.
  void set_fp8(bool fp8);
  void fit(const BatchShape& shape);

  Norm& norm() { return attention_.norm(); }  ///< The first norm of the block.
  Sublayer& attention() { return attention_; }
  Sublayer& mlp() { return mlp_; }

  /// Computes `branch` from norm()'s output. mlp().add() adds it to the residual stream.
  void forward(const Tensor& branch);
  /// Computes the activations that were not kept again, with the same bits.
  void restore(const Tensor& branch);

 private:
  GptBlock(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute);

  Device& device_;
  Recompute recompute_;
  Attention attention_;
  FeedForward mlp_;
};

}  // namespace ddptrain
