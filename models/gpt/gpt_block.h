#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/gpt/shape.h"
#include "models/layers/attention.h"
#include "models/layers/feed_forward.h"

namespace ddptrain {

/// What of a GPT's activations is recomputed in the backward pass instead of being kept.
enum class Recompute : std::uint8_t {
  none,
  gelu,   ///< The GELU's output.
  block,  ///< All but the input of a block.
};

/// Memory for gradients that all blocks share. The residual stream's before a block becomes that behind the next one.
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

  /// One of so many parts of a block, with memory for its activations. `others`: the blocks before it, whose memory it
  /// shares where activations are recomputed. `fp8`: its linear layers can multiply in FP8.
  static GptBlock make(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute, bool fp8,
                       const std::vector<GptBlock>& others, Activations& memory);
  /// `first`: place of the block's first parameter in the model's.
  void bind(const ModelTensors& tensors, std::size_t first);

  /// Its scales are `first` and the following ones: those of its linear layers, one behind the other.
  void bind_scales(Fp8Scales& scales, std::size_t first);
  /// Whether the linear layers multiply in FP8, from the next forward pass on.
  void set_fp8(bool fp8);
  void fit(const BatchShape& shape);

  Norm& norm() { return attention_.norm(); }  ///< With which the block begins.
  Sublayer& attention() { return attention_; }
  Sublayer& mlp() { return mlp_; }

  /// From norm()'s output to `branch`, which mlp().add() adds to the residual stream.
  void forward(const Tensor& branch);
  /// Computes again, bit by bit, what was not kept.
  void restore(const Tensor& branch);

 private:
  GptBlock(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute);

  Device& device_;
  Recompute recompute_;
  Attention attention_;
  FeedForward mlp_;
};

}  // namespace ddptrain
