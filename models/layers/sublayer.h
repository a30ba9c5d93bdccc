#pragma once

#include <string>

#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parameters.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/ops/activation.h"

namespace ddptrain {

/// Gradients of activations. Sublayers of one kind share this memory.
struct SublayerGradients {
  Tensor d_output;      ///< [batch, sequence, width]: the residual stream after the sublayer.
  Tensor d_branch;      ///< [batch, sequence, width]: the branch before dropout. Unused without dropout.
  Tensor d_input;       ///< The stream before the sublayer. With dropout it shares the memory of d_output.
  Tensor d_hidden;      ///< [batch, sequence, columns]: the output of `in`.
  Tensor d_activated;   ///< [batch, sequence, columns]: the input of `out`, if the sublayer needs memory for it.
  Tensor d_norm;        ///< [batch, sequence, width]: the norm's output.
  Tensor d_branch_fp8;  ///< Copy of d_branch (or d_output). Unused without FP8.
  Tensor d_hidden_fp8;  ///< Copy of d_hidden. Unused without FP8.

  void fit(const BatchShape& shape) {
    for (Tensor* tensor :
         {&d_output, &d_branch, &d_input, &d_hidden, &d_activated, &d_norm, &d_branch_fp8, &d_hidden_fp8}) {
      if (*tensor) shape.fit(*tensor);
    }
  }
};

/// One half of a transformer's block (add_sublayer()): x + dropout(out(inner(in(norm(x))))). The branch is out(...).
/// The next norm adds it to the residual stream.
///
/// Ranks may split a sublayer (Shoeybi et al., "Megatron-LM", arXiv:1909.08053): each rank has some outputs of `in` and
/// the matching inputs of `out`. The branch is the sum over the ranks, and so is the gradient of the norm's output. The
/// next norm adds the terms of the branch, this sublayer's norm those of the gradient. A sublayer computes chunk after
/// chunk (BatchChunk). The exchange of a chunk overlaps with the computation of the next.
class Sublayer {
 public:
  static constexpr std::size_t kScales = 2 * Linear::kScaleFormats.size();

  virtual ~Sublayer() = default;
  Sublayer(const Sublayer&) = delete;
  Sublayer& operator=(const Sublayer&) = delete;

  Norm& norm() { return norm_; }
  virtual std::size_t parameters() const { return out_.parameters() + in_.parameters() + norm_.parameters(); }
  virtual void bind(const ModelTensors& tensors, std::size_t first) {
    first_ = first;
    group_ = tensors.group;
    out_.bind(tensors, first);
    in_.bind(tensors, first + out_.parameters());
    norm_.bind(tensors, first + out_.parameters() + in_.parameters());
  }

  /// Asks for the memory that FP8 takes: copies of weights and of activations.
  virtual void request_fp8(Activations& memory, const std::string& name, const Lifetime& weights,
                           const Lifetime& /*activations*/) {
    in_.request_fp8(memory, name + " in", weights);
    out_.request_fp8(memory, name + " out", weights);
  }
  virtual void bind_scales(Fp8Scales& scales, std::size_t first) {
    in_.bind_scales(scales, first);
    out_.bind_scales(scales, first + Linear::kScaleFormats.size());
    norm_.output.scale = in_.input_scale();
  }
  virtual void set_fp8(bool fp8) {
    in_.set_fp8(fp8);
    out_.set_fp8(fp8);
    norm_.output.dtype = fp8 ? DType::e4m3 : device_.dtype();
  }
  bool fp8() const { return in_.fp8(); }
  void convert_weights() {
    in_.convert_weight();
    out_.convert_weight();
  }

  virtual void fit(const BatchShape& shape) { norm_.fit(shape); }
  void set_dropout(const Dropout& dropout) { dropout_ = dropout; }

  /// Computes `branch`, or this rank's term of it, from the norm's output.
  void forward(const Tensor& branch) {
    for_chunks([&](const BatchChunk& chunk) { inner_forward(chunk, chunk.of(branch)); });
  }
  /// The forward pass of the next norm, which adds the branch to the stream.
  void add(const Tensor& branch, Norm& next) { next.forward(norm_.input, branch, dropout_); }

  /// Computes g.d_input from g.d_output, the gradients of the norm, and some bias gradients. If `previous_dbias` has
  /// data, it gets the sums of d_input: the bias gradient of the layer before this sublayer.
  void backward_data(const SublayerGradients& g, const Tensor& previous_dbias, bool accumulate) {
    backward_to_norm(g, accumulate);
    norm_.backward(g.d_norm, g.d_output, g.d_input, previous_dbias, accumulate);
  }
  /// Computes the remaining gradients from g as backward_data() has left it. Reports all parameters.
  void backward_weights(const SublayerGradients& g, bool accumulate, const Model::Ready& ready) {
    weight_gradient_of_out(g, accumulate);
    for (std::size_t i = 0; i < out_.parameters(); ++i) ready(first_ + i);
    weight_gradient_of_in(g, accumulate);
    for (std::size_t i = out_.parameters(); i < parameters(); ++i) ready(first_ + i);
  }
  /// backward_data() and backward_weights(). If ranks split the layer, the gradients of weights overlap with the
  /// exchange of the last chunk.
  void backward(const SublayerGradients& g, const Tensor& previous_dbias, bool accumulate, const Model::Ready& ready) {
    if (group_ == nullptr) {
      backward_data(g, previous_dbias, accumulate);
      backward_weights(g, accumulate, ready);
      return;
    }
    backward_to_norm(g, accumulate);
    norm_.backward(
        g.d_norm, g.d_output, g.d_input, Tensor{}, accumulate, [&] { weight_gradient_of_in(g, accumulate); },
        [&] { weight_gradient_of_out(g, accumulate); });
    for (std::size_t i = 0; i < parameters(); ++i) ready(first_ + i);
  }
  /// Whether a sublayer computes the gradient of the bias of `out`. If not, the next norm does.
  static bool gives_dbias(float dropout, const TensorGroup* group) { return dropout > 0.0f || group != nullptr; }
  /// The gradient of that bias, for the next norm. Without data if this sublayer computes it, or has no such bias.
  Tensor dbias_from_next() const { return gives_dbias(dropout_.rate, group_) ? Tensor{} : out_.dbias(); }

 protected:
  /// `shape` is this rank's slice.
  Sublayer(Device& device, const SublayerShape& shape, float epsilon)
      : device_(device),
        norm_(device, shape.norm, shape.in.at(1), epsilon),
        in_(device, shape.in, shape.in_bias),
        out_(device, shape.out, shape.out_bias),
        activation_(device.get<ActivationOps>()) {}

  Span span(const char* name) const { return {device_.timeline(), Lane::compute, device_.compute_stream(), name}; }

  /// Computes a chunk of the branch, `branch`. Ends with project().
  virtual void inner_forward(const BatchChunk& chunk, const Tensor& branch) = 0;
  /// Computes a chunk of g.d_norm from `d_branch`, the same chunk of the gradient of the branch. `accumulate` is true
  /// for every chunk after the first.
  virtual void inner_backward(const BatchChunk& chunk, const SublayerGradients& g, const Tensor& d_branch,
                              bool accumulate) = 0;
  /// The input of `out`, and the gradient of the output of `in` as Linear::gradient() returns it.
  virtual Tensor inner_output() const = 0;
  virtual Tensor inner_gradient(const SublayerGradients& g) const = 0;
  /// The bias gradient of `in` for backward_weights(). Without data if inner_backward() computes it.
  virtual Tensor in_dbias() const = 0;

  /// Calls work(chunk) for each chunk, in the order of the compute stream after the chunk's exchange.
  template <class Work>
  void for_chunks(const Work& work) {
    for (const BatchChunk& chunk : norm_.chunks()) {
      if (group_ != nullptr) group_->await(chunk.index);
      work(chunk);
      if (group_ != nullptr) group_->computed(chunk.index);
    }
  }
  /// branch = out(x), or this rank's term of it.
  void project(const Tensor& x, const Tensor& branch) {
    out_.forward(x, branch, group_ == nullptr || group_->is_first());
  }
  Tensor dbias_from_branch() const { return gives_dbias(dropout_.rate, group_) ? out_.dbias() : Tensor{}; }

  Device& device_;
  Norm norm_;
  Linear in_;
  Linear out_;
  TensorGroup* group_ = nullptr;  ///< Null: layers are not split.
  std::size_t first_ = 0;         ///< Index of the first parameter.

 private:
  /// Computes g.d_norm from g.d_output; if ranks split the layer, this rank's term of it.
  void backward_to_norm(const SublayerGradients& g, bool accumulate) {
    for_chunks([&](const BatchChunk& chunk) {
      const Tensor d_branch = chunk.of(this->d_branch(g));
      if (dropout_.rate > 0.0f) {
        Dropout dropout = dropout_;
        dropout.position += chunk.first_window(g.d_output.dim(0));
        activation_.dropout(chunk.of(g.d_output), dropout, d_branch);
      }
      inner_backward(chunk, g, d_branch, accumulate || !chunk.is_first());
    });
  }
  void weight_gradient_of_out(const SublayerGradients& g, bool accumulate) {
    const Span span = this->span("weight gradient");
    out_.backward_weight(inner_output(), out_.gradient(d_branch(g), g.d_branch_fp8), dbias_from_branch(), accumulate);
  }
  void weight_gradient_of_in(const SublayerGradients& g, bool accumulate) {
    const Span span = this->span("weight gradient");
    in_.backward_weight(norm_.output, inner_gradient(g), in_dbias(), accumulate);
  }
  const Tensor& d_branch(const SublayerGradients& g) const { return dropout_.rate > 0.0f ? g.d_branch : g.d_output; }

  ActivationOps& activation_;
  Dropout dropout_;
};

}  // namespace ddptrain
