#pragma once

#include "models/layers/linear.h"
#include "models/layers/norm.h"
#include "models/layers/parameters.h"
#include "runtime/ops/activation.h"

namespace ddptrain {

/// Memory for the gradients of one kind of sublayer, which all of that kind share.
struct SublayerGradients {
  Tensor dout;     ///< [batch, sequence, width]: of the residual stream behind the sublayer.
  Tensor dbranch;  ///< The same behind the sublayer's dropout, in memory of its own; unused without dropout.
  Tensor din;      ///< Of the stream before it: memory of its own without dropout, with dropout that of dout.
  Tensor dinner;   ///< [batch, sequence, columns]: of what the first linear layer gives.
  Tensor dnorm;    ///< [batch, sequence, width]: of the norm's output.
  Tensor dbranch_fp8, dinner_fp8;  ///< Copies of dbranch (or dout) and dinner, unused without FP8.

  void fit(const BatchShape& shape);
};

/// One half of a transformer's block (add_sublayer()): x + dropout(out(inner(in(norm(x))))). What it adds to the
/// residual stream is its branch; the norm behind the sublayer adds it.
///
/// Ranks may split it (Shoeybi et al., "Megatron-LM", arXiv:1909.08053): each has some outputs of `in` and the inputs
/// of `out` that come from them. The branch is the sum of what the ranks give, and so is the gradient of the norm's
/// output. Each rank sums its part of the rows.
class Sublayer {
 public:
  static constexpr std::size_t kParameters = 2 * Linear::kParameters + Norm::kParameters;
  static constexpr std::size_t kScales = 2 * Linear::kScaleFormats.size();

  virtual ~Sublayer() = default;

  Norm& norm() { return norm_; }
  void bind(const ModelTensors& tensors, std::size_t first);

  void prepare_fp8(Activations& memory);
  virtual void bind_scales(Fp8Scales& scales, std::size_t first);
  virtual void set_fp8(bool fp8);
  bool fp8() const { return in_.fp8(); }
  void convert_weights();

  virtual void fit(const BatchShape& shape) { norm_.fit(shape); }
  void set_dropout(const Dropout& dropout) { dropout_ = dropout; }

  /// From the norm's output to `branch`, of which a rank that splits the layer gets its part of the rows.
  virtual void forward(const Tensor& branch) = 0;
  /// Adds the branch to the stream, for the norm behind this sublayer.
  void add(const Tensor& branch, Norm& next);

  /// From g.dout to g.din, with the gradients of the norm and of biases that come along: of this sublayer's layers, and
  /// `before_dbias`, which has data where the layer that gives the branch before this sublayer gets the sums of din.
  void backward_data(const SublayerGradients& g, const Tensor& before_dbias, bool accumulate);
  /// The rest, from what backward_data() has left in g; reports all parameters.
  void backward_weights(const SublayerGradients& g, bool accumulate, const Model::Ready& ready);
  /// Both. The weights' gradients overlap with the exchanges of ranks that split the layer.
  void backward(const SublayerGradients& g, const Tensor& before_dbias, bool accumulate, const Model::Ready& ready);
  /// Whether a sublayer gives the gradient of the bias of `out`, as with dropout and where ranks split it; otherwise
  /// the norm behind it does.
  static bool gives_dbias(float dropout, const TensorGroup* group) { return dropout > 0.0f || group != nullptr; }
  /// The gradient of that bias, for the norm; without data where this sublayer gives it.
  Tensor dbias_from_next() const { return dbias_from_branch() ? Tensor{} : out_.dbias(); }

 protected:
  /// `shape`: of this rank's part.
  Sublayer(Device& device, const SublayerShape& shape, float epsilon)
      : device_(device),
        norm_(device, shape.in.at(1), epsilon),
        in_(device, shape.in),
        out_(device, shape.out),
        activation_(device.get<ActivationOps>()) {}

  Span part(const char* name) const { return {device_.timeline(), Lane::compute, device_.compute_stream(), name}; }

  /// From the gradient of the branch to g.dnorm.
  virtual void inner_backward(const SublayerGradients& g, const Tensor& dbranch, bool accumulate) = 0;
  /// What `out` multiplies, and the gradient of what `in` gives as it is multiplied.
  virtual Tensor inner_output() const = 0;
  virtual Tensor inner_gradient(const SublayerGradients& g) const = 0;
  /// Where backward_weights() gives the bias gradient of `in`.
  virtual Tensor in_dbias() const = 0;

  /// branch = out(x), over all parts.
  void project(const Tensor& x, const Tensor& branch);
  Tensor dbias_from_branch() const { return gives_dbias(dropout_.rate, group_) ? out_.dbias() : Tensor{}; }

  Device& device_;
  Norm norm_;
  Linear in_, out_;

 private:
  /// From g.dout to g.dnorm, or to what this rank gives of its sum.
  void backward_part(const SublayerGradients& g, bool accumulate);
  void weight_gradient_of_out(const SublayerGradients& g, bool accumulate);
  void weight_gradient_of_in(const SublayerGradients& g, bool accumulate);
  const Tensor& dbranch(const SublayerGradients& g) const { return dropout_.rate > 0.0f ? g.dbranch : g.dout; }

  ActivationOps& activation_;
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all parts.
  Dropout dropout_;
  std::size_t first_ = 0;
};

}  // namespace ddptrain
