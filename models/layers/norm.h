#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/layers/activations.h"
#include "models/layers/parameters.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/core/error.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/reduction.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Layer norm or RMS norm of the residual stream (add_norm()): parameters, their gradients, and the activations of a
/// batch.
///
/// Ranks that split layers also divide the rows of the stream (sequence parallelism: Korthikanti et al., "Reducing
/// activation recomputation", arXiv:2205.05198). Each rank normalises its own rows. Then the output, and in the
/// backward pass the gradient of the input, are gathered.
class Norm {
 public:
  Norm(Device& device, NormKind kind, std::int64_t width, float epsilon)
      : device_(device),
        layer_(kind == NormKind::layer ? &device.get<NormOps>() : nullptr),
        rms_(kind == NormKind::rms ? &device.get<RmsNormOps>() : nullptr),
        reduction_(device.get<ReductionOps>()),
        width_(width),
        epsilon_(epsilon) {}

  std::size_t parameters() const { return layer_ != nullptr ? 2 : 1; }
  void bind(const ModelTensors& tensors, std::size_t first) {
    weight_ = tensors.weights.at(first);
    dweight_ = tensors.gradients.at(first);
    group_ = tensors.group;
    if (layer_ == nullptr) return;
    bias_ = tensors.weights.at(first + 1);
    dbias_ = tensors.gradients.at(first + 1);
  }

  /// Asks for the memory of `input`.
  void request_input(Activations& memory, const std::string& name, const Lifetime& lifetime) {
    memory.add_rows(name + " input", width_, lifetime, input);
  }
  /// Asks for the memory of `output`, and of what the backward pass needs besides `input`.
  void request(Activations& memory, const std::string& name, const Lifetime& lifetime) {
    memory.add(name + " output", width_, lifetime, output);
    memory.add_statistics(name + " statistics", {memory.slice_rows(), statistics()}, lifetime, statistics_);
    if (memory.slices() == 1) return;
    memory.add_statistics(name + " partial gradients", {static_cast<std::int64_t>(parameters()), width_}, lifetime,
                          partial_);
  }
  void fit(const BatchShape& shape) {
    shape_ = shape;
    own_ = group_ == nullptr ? shape : shape.slice(group_->ranks().size());
    own_.fit(input);
    shape.fit(output);
    statistics_.shape = {own_.rows(), statistics()};
  }
  Tensor input;   ///< The stream: [batch, sequence, width], or this rank's slice of the rows.
  Tensor output;  ///< [batch, sequence, width]; may be e4m3.

  /// forward() with a branch then leaves the norm to the linear layer that reads its output, if it is an RMS norm.
  void leave_to_reader() { left_to_reader_ = rms_ != nullptr; }
  /// What it has left. Null: `output` has been written.
  const AddedNorm* left() const { return left_ ? &*left_ : nullptr; }

  /// output = norm(input)
  void forward() {
    left_.reset();
    normalise(own(output));
    if (group_ != nullptr) group_->run({group_->gather(output)});
  }
  /// input = residual + dropout(branch); output = norm(input). `residual` has the shape of `input`, `branch` the shape
  /// of `output`. If ranks divide rows, only this rank's rows of `branch` are used.
  void forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout) {
    left_.reset();
    if (left_to_reader_ && group_ == nullptr && dropout.rate <= 0.0f) {
      left_ = {residual, branch, weight_, epsilon_, input, output, statistics_};
      return;
    }
    add_and_normalise(residual, own(branch), of_own(dropout), own(output));
    if (group_ != nullptr) group_->run({group_->gather(output)});
  }
  /// d_input = d_residual (if it has data) + the gradient through the norm. All have the shape of `output`. For
  /// `d_input_sums` see NormOps; it has no data if ranks divide rows. Such ranks first reduce d_output while `first`
  /// runs, and at the end gather d_input while `second` runs. Without a group neither is called.
  using Work = std::function<void()>;
  void backward(const Tensor& d_output, const Tensor& d_residual, const Tensor& d_input, const Tensor& d_input_sums,
                bool accumulate, const Work& first = {}, const Work& second = {}) {
    if (group_ != nullptr) {
      backward_rows(d_output, d_residual, d_input, accumulate, first, second);
      return;
    }
    normalise_backward(d_output, d_residual, d_input, {dweight_, dbias_}, d_input_sums, accumulate);
  }
  /// This rank's rows of an activation.
  Tensor own(const Tensor& activation) const {
    if (group_ == nullptr || !activation) return activation;
    Tensor own = group_->own(activation);
    own.shape = {own_.batch, own_.sequence, width_};
    return own;
  }

 private:
  struct Gradients {
    Tensor weight;
    Tensor bias;  ///< Without data for an RMS norm.
  };

  void backward_rows(const Tensor& d_output, const Tensor& d_residual, const Tensor& d_input, bool accumulate,
                     const Work& first, const Work& second) {
    group_->run({group_->sum_shard(d_output)}, first);
    const Tensor dweight = partial_.stretch(0, width_);
    const Tensor dbias = layer_ != nullptr ? partial_.stretch(width_, width_) : Tensor{};
    normalise_backward(own(d_output), own(d_residual), own(d_input), {dweight, dbias}, Tensor{}, false);
    group_->run({group_->gather(d_input), TensorGroup::sum(partial_)}, second);
    for (const auto& [mine, all] : {std::pair{dweight, dweight_}, {dbias, dbias_}}) {
      if (!mine) continue;
      reduction_.add_nodes(accumulate ? std::vector{mine, all} : std::vector{mine}, all, device_.compute_stream());
    }
  }

  // The two kinds of norms.
  std::int64_t statistics() const { return layer_ != nullptr ? 2 : 1; }  ///< Numbers per row.
  void normalise(const Tensor& y) {
    if (rms_ != nullptr) {
      rms_->rms_norm(input, weight_, epsilon_, y, statistics_);
      return;
    }
    layer_->layer_norm(input, weight_, bias_, epsilon_, y, statistics_);
  }
  void add_and_normalise(const Tensor& residual, const Tensor& branch, const Dropout& dropout, const Tensor& y) {
    if (rms_ != nullptr) {
      rms_->add_rms_norm(residual, branch, dropout, weight_, epsilon_, input, y, statistics_);
      return;
    }
    layer_->add_layer_norm(residual, branch, dropout, weight_, bias_, epsilon_, input, y, statistics_);
  }
  void normalise_backward(const Tensor& dy, const Tensor& d_residual, const Tensor& dx, const Gradients& gradients,
                          const Tensor& dx_sums, bool accumulate) {
    if (rms_ != nullptr) {
      rms_->rms_norm_backward(input, weight_, statistics_, dy, d_residual, dx, gradients.weight, dx_sums, accumulate);
      return;
    }
    layer_->layer_norm_backward(input, weight_, statistics_, dy, d_residual, dx, gradients.weight, gradients.bias,
                                dx_sums, accumulate);
  }

  Dropout of_own(Dropout dropout) const {
    if (group_ == nullptr || dropout.rate <= 0.0f) return dropout;
    DDP_CHECK(own_.rows() % shape_.sequence == 0 || shape_.sequence % own_.rows() == 0,
              "norm: dropout of slices of {} rows, windows have {}", own_.rows(), shape_.sequence);
    const std::int64_t row = group_->ranks().rank() * own_.rows();
    dropout.position += static_cast<std::uint32_t>(row / shape_.sequence);
    dropout.first = static_cast<std::uint32_t>(row % shape_.sequence * width_);
    return dropout;
  }

  Device& device_;
  NormOps* layer_;   ///< Null: an RMS norm.
  RmsNormOps* rms_;  ///< Null: a layer norm.
  ReductionOps& reduction_;
  std::int64_t width_;
  float epsilon_;
  Tensor weight_;
  Tensor bias_;
  Tensor dweight_;
  Tensor dbias_;
  Tensor statistics_;             ///< [rows, statistics()]
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all rows.
  BatchShape shape_;              ///< All rows.
  BatchShape own_;                ///< This rank's rows.
  bool left_to_reader_ = false;
  std::optional<AddedNorm> left_;
  Tensor partial_;  ///< [parameters(), width]: gradients from this rank's rows, if it does not have all.
};

}  // namespace ddptrain
