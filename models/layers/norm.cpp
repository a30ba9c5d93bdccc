#include "models/layers/norm.h"

#include "runtime/core/error.h"

namespace ddptrain {

Norm::Norm(Device& device, std::int64_t width, float epsilon)
    : device_(device),
      norm_(device.get<NormOps>()),
      reduction_(device.get<ReductionOps>()),
      width_(width),
      epsilon_(epsilon) {}

void Norm::bind(const ModelTensors& tensors, std::size_t first) {
  weight_ = tensors.weights.at(first);
  bias_ = tensors.weights.at(first + 1);
  dweight_ = tensors.gradients.at(first);
  dbias_ = tensors.gradients.at(first + 1);
  group_ = tensors.group;
}

void Norm::allocate(Activations& memory) {
  output = memory.activation(width_);
  statistics_ = memory.statistics({memory.part_rows(), 2});
  if (memory.parts() > 1) partial_ = memory.statistics({2, width_});
}

void Norm::fit(const BatchShape& shape) {
  shape_ = shape;
  own_ = group_ == nullptr ? shape : shape.part(group_->world().size());
  own_.fit(input);
  shape.fit(output);
  statistics_.shape = {own_.rows(), 2};
}

Tensor Norm::own(const Tensor& activation) const {
  if (group_ == nullptr || !activation) return activation;
  Tensor own = group_->own(activation);
  own.shape = {own_.batch, own_.sequence, width_};
  return own;
}

Dropout Norm::of_own(Dropout dropout) const {
  if (group_ == nullptr || dropout.rate <= 0.0f) return dropout;
  DDP_CHECK(own_.rows() % shape_.sequence == 0 || shape_.sequence % own_.rows() == 0,
            "norm: dropout of parts of {} rows, windows have {}", own_.rows(), shape_.sequence);
  const std::int64_t row = group_->world().rank() * own_.rows();
  dropout.position += static_cast<std::uint32_t>(row / shape_.sequence);
  dropout.first = static_cast<std::uint32_t>(row % shape_.sequence * width_);
  return dropout;
}

void Norm::forward() {
  norm_.layer_norm(input, weight_, bias_, epsilon_, own(output), statistics_);
  if (group_ != nullptr) group_->run({group_->gather(output)});
}

void Norm::forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout) {
  norm_.add_layer_norm(residual, own(branch), of_own(dropout), weight_, bias_, epsilon_, input, own(output),
                       statistics_);
  if (group_ != nullptr) group_->run({group_->gather(output)});
}

void Norm::backward(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, const Tensor& dinput_sums,
                    bool accumulate, const Work& first, const Work& second) {
  if (group_ != nullptr) return backward_part(doutput, dresidual, dinput, accumulate, first, second);
  norm_.layer_norm_backward(input, weight_, statistics_, doutput, dresidual, dinput, dweight_, dbias_, dinput_sums,
                            accumulate);
}

void Norm::backward_part(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, bool accumulate,
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

}  // namespace ddptrain
