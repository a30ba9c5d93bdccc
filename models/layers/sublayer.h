#pragma once

#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parameters.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/ops/activation.h"

namespace ddptrain {

/// Gradients of activations. All sublayers of one kind share this memory.
struct SublayerGradients {
  Tensor dout;                     ///< [batch, sequence, width]: the residual stream after the sublayer.
  Tensor dbranch;                  ///< [batch, sequence, width]: the branch before dropout. Unused without dropout.
  Tensor din;                      ///< The stream before the sublayer. With dropout it shares the memory of dout.
  Tensor dinner;                   ///< [batch, sequence, columns]: the output of `in`.
  Tensor dnorm;                    ///< [batch, sequence, width]: the norm's output.
  Tensor dbranch_fp8, dinner_fp8;  ///< Copies of dbranch (or dout) and dinner. Unused without FP8.

  void fit(const BatchShape& shape) {
    for (Tensor* tensor : {&dout, &dbranch, &din, &dinner, &dnorm, &dbranch_fp8, &dinner_fp8}) {
      if (*tensor) shape.fit(*tensor);
    }
  }
};

/// One half of a transformer's block (add_sublayer()): x + dropout(out(inner(in(norm(x))))). The branch is out(...).
/// The next norm adds it to the residual stream.
///
/// Ranks may split a sublayer (Shoeybi et al., "Megatron-LM", arXiv:1909.08053): each rank has some outputs of `in` and
/// the matching inputs of `out`. The branch is the sum over the ranks, and so is the gradient of the norm's output.
/// Each rank gets its part of the rows of both sums.
class Sublayer {
 public:
  static constexpr std::size_t kParameters = 2 * Linear::kParameters + Norm::kParameters;
  static constexpr std::size_t kScales = 2 * Linear::kScaleFormats.size();

  virtual ~Sublayer() = default;

  Norm& norm() { return norm_; }
  void bind(const ModelTensors& tensors, std::size_t first) {
    first_ = first;
    group_ = tensors.group;
    out_.bind(tensors, first);
    in_.bind(tensors, first + Linear::kParameters);
    norm_.bind(tensors, first + 2 * Linear::kParameters);
  }

  void prepare_fp8(Activations& memory) {
    in_.prepare_fp8(memory);
    out_.prepare_fp8(memory);
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

  /// Computes `branch` from the norm's output. If ranks split the layer, each gets its part of the rows.
  virtual void forward(const Tensor& branch) = 0;
  /// The forward pass of the next norm, which adds the branch to the stream.
  void add(const Tensor& branch, Norm& next) {
    const Span span = part("add and norm");
    next.forward(norm_.input, branch, dropout_);
  }

  /// Computes g.din from g.dout, the gradients of the norm, and some bias gradients. If `before_dbias` has data, it
  /// gets the sums of din: the bias gradient of the layer before this sublayer.
  void backward_data(const SublayerGradients& g, const Tensor& before_dbias, bool accumulate) {
    backward_part(g, accumulate);
    const Span span = part("d norm");
    norm_.backward(g.dnorm, g.dout, g.din, before_dbias, accumulate);
  }
  /// Computes the remaining gradients from g as backward_data() has left it. Reports all parameters.
  void backward_weights(const SublayerGradients& g, bool accumulate, const Model::Ready& ready) {
    weight_gradient_of_out(g, accumulate);
    for (std::size_t i = 0; i < Linear::kParameters; ++i) ready(first_ + i);
    weight_gradient_of_in(g, accumulate);
    for (std::size_t i = Linear::kParameters; i < kParameters; ++i) ready(first_ + i);
  }
  /// Both. The gradients of weights overlap with the collectives of ranks that split the layer.
  void backward(const SublayerGradients& g, const Tensor& before_dbias, bool accumulate, const Model::Ready& ready) {
    if (group_ == nullptr) {
      backward_data(g, before_dbias, accumulate);
      backward_weights(g, accumulate, ready);
      return;
    }
    backward_part(g, accumulate);
    norm_.backward(
        g.dnorm, g.dout, g.din, Tensor{}, accumulate, [&] { weight_gradient_of_out(g, accumulate); },
        [&] { weight_gradient_of_in(g, accumulate); });
    for (std::size_t i = 0; i < kParameters; ++i) ready(first_ + i);
  }
  /// Whether a sublayer computes the gradient of the bias of `out`. If not, the next norm does.
  static bool gives_dbias(float dropout, const TensorGroup* group) { return dropout > 0.0f || group != nullptr; }
  /// The gradient of that bias, for the next norm. Without data if this sublayer computes it.
  Tensor dbias_from_next() const { return dbias_from_branch() ? Tensor{} : out_.dbias(); }

 protected:
  /// `shape` is this rank's part.
  Sublayer(Device& device, const SublayerShape& shape, float epsilon)
      : device_(device),
        norm_(device, shape.in.at(1), epsilon),
        in_(device, shape.in),
        out_(device, shape.out),
        activation_(device.get<ActivationOps>()) {}

  Span part(const char* name) const { return {device_.timeline(), Lane::compute, device_.compute_stream(), name}; }

  /// Computes g.dnorm from the gradient of the branch.
  virtual void inner_backward(const SublayerGradients& g, const Tensor& dbranch, bool accumulate) = 0;
  /// The input of `out`, and the gradient of the output of `in` as Linear::gradient() returns it.
  virtual Tensor inner_output() const = 0;
  virtual Tensor inner_gradient(const SublayerGradients& g) const = 0;
  /// The bias gradient of `in` for backward_weights(). Without data if inner_backward() computes it.
  virtual Tensor in_dbias() const = 0;

  /// branch = out(x), summed over all parts.
  void project(const Tensor& x, const Tensor& branch) {
    out_.forward(x, branch, group_ == nullptr || group_->is_first());
    if (group_ != nullptr) group_->run({group_->sum_part(branch)});
  }
  Tensor dbias_from_branch() const { return gives_dbias(dropout_.rate, group_) ? out_.dbias() : Tensor{}; }

  Device& device_;
  Norm norm_;
  Linear in_, out_;

 private:
  /// Computes g.dnorm from g.dout; if ranks split the layer, this rank's term of it.
  void backward_part(const SublayerGradients& g, bool accumulate) {
    if (dropout_.rate > 0.0f) activation_.dropout(g.dout, dropout_, g.dbranch);
    inner_backward(g, dbranch(g), accumulate);
  }
  void weight_gradient_of_out(const SublayerGradients& g, bool accumulate) {
    const Span span = part("weight gradient");
    out_.backward_weight(inner_output(), out_.gradient(dbranch(g), g.dbranch_fp8), dbias_from_branch(), accumulate);
  }
  void weight_gradient_of_in(const SublayerGradients& g, bool accumulate) {
    const Span span = part("weight gradient");
    in_.backward_weight(norm_.output, inner_gradient(g), in_dbias(), accumulate);
  }
  const Tensor& dbranch(const SublayerGradients& g) const { return dropout_.rate > 0.0f ? g.dbranch : g.dout; }

  ActivationOps& activation_;
  TensorGroup* group_ = nullptr;  ///< Null: layers are not split.
  Dropout dropout_;
  std::size_t first_ = 0;
};

}  // namespace ddptrain
