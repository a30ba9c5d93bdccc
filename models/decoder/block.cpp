#include "models/decoder/block.h"

namespace ddptrain {

// --- the plain path -----------------------------------------------------------------------------------------------

void DecoderBlock::forward(const Tensor& branch) {
  convert_weights();
  attention_.forward(branch);
  attention_.add(branch, mlp_.norm());
  mlp_.forward(branch);
}

void DecoderBlock::backward(const BlockGradients& g, const Tensor& branch, const Tensor& previous_dbias,
                            bool accumulate, const Model::Ready& ready) {
  restore(branch);
  mlp_.backward(g.mlp, attention_.dbias_from_next(), accumulate, ready);
  attention_.backward(g.attention, previous_dbias, accumulate, ready);
}

void DecoderBlock::backward_mlp_data(const BlockGradients& g, const Tensor& branch, bool accumulate) {
  restore(branch);
  mlp_.backward_data(g.mlp, attention_.dbias_from_next(), accumulate);
}
void DecoderBlock::backward_attention_data(const BlockGradients& g, bool accumulate) {
  attention_.backward_data(g.attention, Tensor{}, accumulate);
}
void DecoderBlock::backward_mlp_weights(const BlockGradients& g, bool accumulate, const Model::Ready& ready) {
  mlp_.backward_weights(g.mlp, accumulate, ready);
}
void DecoderBlock::backward_attention_weights(const BlockGradients& g, bool accumulate, const Model::Ready& ready) {
  attention_.backward_weights(g.attention, accumulate, ready);
}

/// Computes the activations that were not kept again, with the same bits.
void DecoderBlock::restore(const Tensor& branch) {
  if (!restores_) return;
  if (recompute_ == Recompute::block) {
    norm().forward();
    attention_.forward(branch);
    attention_.add(branch, mlp_.norm());
    mlp_.expand();
    return;
  }
  if (recompute_ == Recompute::selective) {
    norm().forward();
    mlp_.norm().forward();
  }
  mlp_.restore_hidden();
}

void DecoderBlock::convert_weights() {
  if (!mlp_.fp8()) return;
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "weights to FP8");
  attention_.convert_weights();
  mlp_.convert_weights();
}

// --- set-up -------------------------------------------------------------------------------------------------------

DecoderBlock::DecoderBlock(Device& device, const DecoderConfig& config, std::int64_t slices, Recompute recompute)
    : device_(device),
      recompute_(recompute),
      attention_(device, config.width, config.attention(), config.norm, slices, config.epsilon()),
      mlp_(device, config.width, config.mlp(), config.norm, slices, config.epsilon(), restores_hidden(recompute)) {}

void DecoderBlock::request(Activations& memory, const std::string& name, const BlockLifetimes& lifetimes, bool restores,
                           bool fp8) {
  restores_ = restores && recompute_ != Recompute::none;
  norm().request_input(memory, name + ".attention norm", lifetimes.input);
  attention_.request(memory, name + ".attention", lifetimes.others, lifetimes.normalised, lifetimes.exchanged);
  mlp_.norm().request_input(memory, name + ".mlp norm", lifetimes.middle);
  mlp_.request(memory, name + ".mlp", lifetimes.others, lifetimes.normalised, lifetimes.exchanged, lifetimes.activated,
               restores_ && restores_hidden(recompute_));
  if (!fp8) return;
  attention_.request_fp8(memory, name + ".attention", lifetimes.kept, lifetimes.others);
  mlp_.request_fp8(memory, name + ".mlp", lifetimes.kept, lifetimes.others);
}

}  // namespace ddptrain
