#pragma once

#include <cstdint>

#include "models/decoder/config.h"
#include "models/decoder/stage.h"
#include "models/layers/activations.h"
#include "models/layers/sublayer.h"

namespace ddptrain {

/// The lifetimes of the activations of a block. The backward pass of the embedding computes the weight gradients of
/// block 0, so the activations of that block live until then. If ranks split layers, they exchange what the block
/// begins with while the unit before it is computed, and what it ends with while the unit after it is.
struct BlockLifetimes {
  Lifetime input;       ///< The residual stream at the beginning of the block.
  Lifetime kept;        ///< From the block's forward pass to its backward pass.
  Lifetime middle;      ///< The residual stream between attention and MLP; the next unit reads it, too.
  Lifetime normalised;  ///< The outputs of the norms, and their statistics.
  Lifetime activated;   ///< The output of the MLP's activation.
  Lifetime others;      ///< All other activations.
  Lifetime exchanged;   ///< What ranks that split layers receive from each other.
};
BlockLifetimes block_lifetimes(const Stage& stage, std::int64_t layer, Recompute recompute, bool is_split);

/// Gradients of the activations of a block.
struct BlockGradients {
  SublayerGradients mlp;
  SublayerGradients attention;

  void fit(const BatchShape& shape) {
    mlp.fit(shape);
    attention.fit(shape);
  }
};

struct WorkspaceOptions {
  TensorSlice slice = {};
  bool dropout = false;
  bool fp8 = false;
  /// Weight gradients of the head and of block 0 are computed at the same time as later work: see Overlap.
  bool overlaps = false;
};

/// Buffers used by several units of a stage. Blocks request their own activations. Each buffer has a name and a
/// lifetime, from which Activations computes the buffers that share memory.
///
/// d_stream is the gradient of the residual stream between blocks. Without dropout, the weight gradients of a sublayer
/// are computed from the gradient of the stream after it, which must not be overwritten until then. So the gradient
/// between attention and MLP has a buffer of its own, d_between. The weight gradients of block 0 come last, so the
/// gradient of its input has one, too, d_embedded. With dropout, weight gradients are computed from the gradient of the
/// branch. Then the stream needs one buffer, and the branches use the other two.
class Workspace {
 public:
  Workspace(Device& device, const DecoderConfig& config, const Stage& stage, const WorkspaceOptions& options)
      : device_(device), config_(config), stage_(stage), options_(options) {}

  /// Asks for all buffers. `memory` gives them their data in use(); call connect() after that.
  void request(Activations& memory);
  void connect();
  /// `rows` is the shape of this rank's rows of the residual stream.
  void fit(const BatchShape& shape, const Shape& rows);
  /// Whether linear layers use FP8 in the passes that follow.
  void set_fp8(bool fp8);

  /// [batch, sequence, width]: what a sublayer adds to the residual stream. In the backward pass the gradient of a
  /// norm's output, and for a moment the gradient of attention's output.
  const Tensor& branch() const { return branch_; }
  const Tensor& d_stream() const { return d_stream_; }
  const Tensor& d_embedded() const { return options_.dropout ? d_stream_ : d_embedded_; }
  const Tensor& previous_stream() const { return previous_stream_; }
  const Tensor& d_head() const { return d_head_; }
  const BlockGradients& gradients(std::int64_t layer) const { return layer == 0 ? block_0_ : blocks_; }
  Lifetime logits_lifetime() const;
  Lifetime head_lifetime() const;

 private:
  BlockGradients connected(const Tensor& of_attention) const;

  Device& device_;
  const DecoderConfig& config_;
  const Stage& stage_;
  WorkspaceOptions options_;
  Tensor branch_;
  Tensor d_stream_;
  Tensor d_between_;
  Tensor d_embedded_;
  Tensor d_qkv_;
  Tensor d_pre_;            ///< Gradient of the input of the MLP's activation.
  Tensor d_activated_;      ///< Gradient of its output. Unused with a GELU.
  Tensor d_head_;           ///< [padded vocabulary, width]: the output layer's weight gradient.
  Tensor previous_stream_;  ///< The residual stream, from the previous stage.
  Tensor mlp_branch_fp8_;   ///< This and the next two only with FP8.
  Tensor attention_branch_fp8_;
  Tensor d_qkv_fp8_;
  BlockGradients blocks_;   ///< Views of the buffers above, for all blocks but block 0.
  BlockGradients block_0_;  ///< For block 0.
};

}  // namespace ddptrain
