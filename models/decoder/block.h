#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "models/decoder/workspace.h"
#include "models/layers/attention.h"
#include "models/layers/mlp.h"

namespace ddptrain {

/// One block: attention, then the MLP. Each adds its branch to the residual stream in the next norm. So a block begins
/// with its norm's output, and ends with a branch that is still to be added.
class DecoderBlock {
 public:
  static constexpr std::size_t kScales = 2 * Sublayer::kScales;

  /// One of `slices` slices of a block.
  DecoderBlock(Device& device, const DecoderConfig& config, std::int64_t slices, Recompute recompute);

  /// Asks for the memory of its activations. `restores`: the backward pass begins with restore().
  void request(Activations& memory, const std::string& name, const BlockLifetimes& lifetimes, bool restores, bool fp8);
  /// See Attention::request_cache().
  void request_cache(Activations& memory, const std::string& name, std::int64_t positions, const Lifetime& always) {
    attention_.request_cache(memory, name + ".attention", positions, always);
    mlp_.continue_texts();
  }
  /// `first` is the index of the block's first parameter among the model's parameters.
  void bind(const ModelTensors& tensors, std::size_t first) {
    mlp_.bind(tensors, first);
    attention_.bind(tensors, first + mlp_.parameters());
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
  void set_dropout(const Dropout& of_attention, const Dropout& of_mlp) {
    attention_.set_dropout(of_attention);
    mlp_.set_dropout(of_mlp);
  }

  Norm& norm() { return attention_.norm(); }  ///< The first norm of the block.
  Mlp& mlp() { return mlp_; }

  /// Computes `branch` from norm()'s output. mlp().add() adds it to the residual stream.
  void forward(const Tensor& branch);
  /// From g.mlp.d_output to g.attention.d_input. `previous_dbias`: see Sublayer::backward_data().
  void backward(const BlockGradients& g, const Tensor& branch, const Tensor& previous_dbias, bool accumulate,
                const Model::Ready& ready);

  // The same in parts, for block 0.
  void backward_mlp_data(const BlockGradients& g, const Tensor& branch, bool accumulate);
  void backward_attention_data(const BlockGradients& g, bool accumulate);
  void backward_mlp_weights(const BlockGradients& g, bool accumulate, const Model::Ready& ready);
  void backward_attention_weights(const BlockGradients& g, bool accumulate, const Model::Ready& ready);

 private:
  void convert_weights();
  void restore(const Tensor& branch);

  Device& device_;
  Recompute recompute_;
  bool restores_ = false;
  Attention attention_;
  Mlp mlp_;
};

}  // namespace ddptrain
