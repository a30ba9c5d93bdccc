#pragma once

#include <cstdint>
#include <functional>

#include "models/layers/activations.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/core/error.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Layer norm of the residual stream (add_norm()): parameters, their gradients, and the activations of a batch.
///
/// Ranks that split layers also divide the rows of the stream (sequence parallelism: Korthikanti et al., "Reducing
/// activation recomputation", arXiv:2205.05198). Each rank normalises its own rows. Then the output, and in the
/// backward pass the gradient of the input, are gathered.
class Norm {
 public:
  static constexpr std::size_t kParameters = 2;

  Norm(Device& device, std::int64_t width, float epsilon)
      : device_(device),
        norm_(device.get<NormOps>()),
        reduction_(device.get<ReductionOps>()),
        width_(width),
        epsilon_(epsilon) {}

  void bind(const ModelTensors& tensors, std::size_t first) {
    weight_ = tensors.weights.at(first);
    bias_ = tensors.weights.at(first + 1);
    dweight_ = tensors.gradients.at(first);
    dbias_ = tensors.gradients.at(first + 1);
    group_ = tensors.group;
  }

  /// Allocates `output`, and what the backward pass needs besides `input`.
  void allocate(Activations& memory) {
    output = memory.activation(width_);
    statistics_ = memory.statistics({memory.part_rows(), 2});
    if (memory.parts() > 1) partial_ = memory.statistics({2, width_});
  }
  void fit(const BatchShape& shape) {
    shape_ = shape;
    own_ = group_ == nullptr ? shape : shape.part(group_->world().size());
    own_.fit(input);
    shape.fit(output);
    statistics_.shape = {own_.rows(), 2};
  }
  Tensor input;   ///< The stream: [batch, sequence, width], or this rank's part of the rows.
  Tensor output;  ///< [batch, sequence, width]; may be e4m3.

  /// output = norm(input)
  void forward() {
    norm_.layer_norm(input, weight_, bias_, epsilon_, own(output), statistics_);
    if (group_ != nullptr) group_->run({group_->gather(output)});
  }
  /// input = residual + dropout(branch); output = norm(input). `residual` has the shape of `input`, `branch` the shape
  /// of `output`. If ranks divide rows, only this rank's rows of `branch` are used.
  void forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout) {
    norm_.add_layer_norm(residual, own(branch), of_own(dropout), weight_, bias_, epsilon_, input, own(output),
                         statistics_);
    if (group_ != nullptr) group_->run({group_->gather(output)});
  }
  /// dinput = dresidual (if it has data) + the gradient through the norm. All have the shape of `output`. For
  /// `dinput_sums` see NormOps; it has no data if ranks divide rows. Such ranks first reduce doutput while `first`
  /// runs, and at the end gather dinput while `second` runs. Without a group neither is called.
  using Work = std::function<void()>;
  void backward(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, const Tensor& dinput_sums,
                bool accumulate, const Work& first = {}, const Work& second = {}) {
    if (group_ != nullptr) return backward_part(doutput, dresidual, dinput, accumulate, first, second);
    norm_.layer_norm_backward(input, weight_, statistics_, doutput, dresidual, dinput, dweight_, dbias_, dinput_sums,
                              accumulate);
  }
  /// This rank's rows of an activation.
  Tensor own(const Tensor& activation) const {
    if (group_ == nullptr || !activation) return activation;
    Tensor own = group_->own(activation);
    own.shape = {own_.batch, own_.sequence, width_};
    return own;
  }

 private:
  void backward_part(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, bool accumulate,
                     const Work& first, const Work& second) {
    group_->run({group_->sum_part(doutput)}, first);
    const Tensor dweight = partial_.stretch(0, width_), dbias = partial_.stretch(width_, width_);
    norm_.layer_norm_backward(input, weight_, statistics_, own(doutput), own(dresidual), own(dinput), dweight, dbias,
                              Tensor{}, false);
    group_->run({group_->gather(dinput), TensorGroup::sum(partial_)}, second);
    for (const auto& [mine, all] : {std::pair{dweight, dweight_}, {dbias, dbias_}}) {
      reduction_.add_nodes(accumulate ? std::vector{mine, all} : std::vector{mine}, all, device_.compute_stream());
    }
  }
  Dropout of_own(Dropout dropout) const {
    if (group_ == nullptr || dropout.rate <= 0.0f) return dropout;
    DDP_CHECK(own_.rows() % shape_.sequence == 0 || shape_.sequence % own_.rows() == 0,
              "norm: dropout of parts of {} rows, windows have {}", own_.rows(), shape_.sequence);
    const std::int64_t row = group_->world().rank() * own_.rows();
    dropout.position += static_cast<std::uint32_t>(row / shape_.sequence);
    dropout.first = static_cast<std::uint32_t>(row % shape_.sequence * width_);
    return dropout;
  }

  Device& device_;
  NormOps& norm_;
  ReductionOps& reduction_;
  std::int64_t width_;
  float epsilon_;
  Tensor weight_, bias_, dweight_, dbias_;
  Tensor statistics_;             ///< [rows, 2]
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all rows.
  BatchShape shape_, own_;        ///< All rows, and this rank's rows.
  Tensor partial_;  ///< [2, width]: gradients of weight and bias from this rank's rows, if it has not all.
};

}  // namespace ddptrain
