#include "models/mlp/mlp.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/images.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"

namespace ddptrain {
namespace {

/// Places in parameters(): backward goes from the last layer to the first.
enum Parameter : std::size_t { fc3_weight, fc3_bias, fc2_weight, fc2_bias, fc1_weight, fc1_bias };

class Mlp final : public Model {
 public:
  Mlp(Device& device, std::int64_t max_batch, ResidentImages images, const MlpShape& shape,
      const std::function<std::vector<float>(const std::string& name)>& pretrained)
      : device_(device),
        image_ops_(device.get<ImageOps>()),
        linear_(device.get<LinearOps>()),
        activation_(device.get<ActivationOps>()),
        loss_(device.get<LossOps>()),
        shape_(shape),
        max_batch_(max_batch),
        data_(std::move(images)),
        parameters_(mlp_parameters(shape)) {
    DDP_CHECK(max_batch > 0, "mlp: a batch of {}", max_batch);
    for (ParameterSpec& spec : parameters_) {
      if (pretrained) spec.initial.read = [name = spec.name, pretrained] { return pretrained(name); };
    }
    images_ = allocate({max_batch, shape.height, shape.width, 1});
    hidden1_ = allocate({max_batch, shape.hidden});
    dhidden1_ = allocate(hidden1_.shape);
    hidden2_ = allocate({max_batch, shape.hidden});
    dhidden2_ = allocate(hidden2_.shape);
    logits_ = allocate({max_batch, shape.classes});
  }

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }

  void bind(const ModelTensors& tensors) override {
    check_fits("mlp", parameters_, tensors, false);
    w_ = tensors.weights;
    g_ = tensors.gradients;
  }

  std::vector<Unit> units() const override {
    return {{"fc1", fc1_weight, 2}, {"fc2", fc2_weight, 2}, {"fc3", fc3_weight, 2}};
  }

  void begin(const MicroBatch& batch) override {
    DDP_CHECK(batch.slice.count > 0 && batch.slice.count <= max_batch_, "mlp: a batch of {}, at most {} fit",
              batch.slice.count, max_batch_);
    batch_ = batch;
    source_ = {batch.slice, batch.training ? data_.train : data_.test};
    image_ops_.gather_images(source_, rows(images_));
  }

  void forward(std::size_t unit) override {
    if (unit == 0) {
      hidden_layer(pixels(), fc1_weight, rows(hidden1_));
      return;
    }
    if (unit == 1) {
      hidden_layer(rows(hidden1_), fc2_weight, rows(hidden2_));
      return;
    }
    const Tensor logits = rows(logits_);
    linear_.linear(rows(hidden2_), w_[fc3_weight], w_[fc3_bias], logits);
    const Tensor dlogits = batch_.gradient_scale != 0.0f ? logits : Tensor{};
    loss_.softmax_cross_entropy(logits, source_, batch_.gradient_scale, dlogits, batch_.sums);
  }

  void backward(std::size_t unit, bool accumulate, const Ready& ready) override {
    const Tensor h1 = rows(hidden1_);
    const Tensor dh1 = rows(dhidden1_);
    const Tensor h2 = rows(hidden2_);
    const Tensor dh2 = rows(dhidden2_);
    if (unit == 2) {
      linear_.linear_backward(h2, w_[fc3_weight], rows(logits_), dh2, g_[fc3_weight], g_[fc3_bias], accumulate);
      ready(fc3_weight);
      ready(fc3_bias);
      return;
    }
    if (unit == 1) {
      hidden_layer_backward(h1, fc2_weight, h2, dh2, dh1, accumulate, ready);
      return;
    }
    hidden_layer_backward(pixels(), fc1_weight, h1, dh1, Tensor{}, accumulate, ready);
  }

  double flops_per_sample() const override { return work().flop(); }
  ModelWork work() const override {
    const auto hidden = static_cast<double>(shape_.hidden);
    const double fc1 = 2.0 * static_cast<double>(shape_.pixels()) * hidden;
    const double fc2 = 2.0 * hidden * hidden;
    const double fc3 = 2.0 * hidden * static_cast<double>(shape_.classes);
    const double after_fc3 = 2.0 * fc3;
    const double after_fc2 = after_fc3 + 2.0 * fc2;
    const double all = after_fc2 + fc1;
    return {{{"fc1", fc1, fc1}, {"fc2", fc2, 2.0 * fc2}, {"fc3", fc3, 2.0 * fc3}},  // the images need no gradient
            {after_fc3, after_fc3, after_fc2, after_fc2, all, all}};
  }
  std::vector<MemoryUse> memory() const override {
    return {{"activations", total_bytes(buffers_)}, {"data", total_bytes(data_.memory)}};
  }
  const char* sample_unit() const override { return "images"; }

 private:
  Tensor allocate(const Shape& shape) {
    buffers_.push_back(device_.allocate(device_.dtype(), shape));
    return buffers_.back().view(device_.dtype(), shape);
  }
  Tensor rows(const Tensor& activation) const { return activation.first(batch_.slice.count); }
  Tensor pixels() const { return {images_.data, images_.dtype, {batch_.slice.count, shape_.pixels()}}; }

  /// The layer's bias follows its weight.
  void hidden_layer(const Tensor& input, std::size_t weight, const Tensor& output) {
    linear_.linear(input, w_[weight], Tensor{}, output);
    activation_.bias_relu_dropout(output, w_[weight + 1], Dropout{});
  }
  void hidden_layer_backward(const Tensor& input, std::size_t weight, const Tensor& output, const Tensor& doutput,
                             const Tensor& dinput, bool accumulate, const Ready& ready) {
    activation_.bias_relu_backward(output, doutput, 1.0f, g_[weight + 1], accumulate);
    linear_.linear_backward(input, w_[weight], doutput, dinput, g_[weight], Tensor{}, accumulate);
    ready(weight);
    ready(weight + 1);
  }

  Device& device_;
  ImageOps& image_ops_;
  LinearOps& linear_;
  ActivationOps& activation_;
  LossOps& loss_;
  MlpShape shape_;
  std::int64_t max_batch_;
  ResidentImages data_;
  std::vector<ParameterSpec> parameters_;
  std::vector<Tensor> w_;  ///< Weights, by Parameter.
  std::vector<Tensor> g_;  ///< Gradients, by Parameter.
  std::vector<Buffer> buffers_;
  Tensor images_;
  Tensor hidden1_;
  Tensor dhidden1_;
  Tensor hidden2_;
  Tensor dhidden2_;
  Tensor logits_;
  MicroBatch batch_;
  ImageBatch source_;
};

}  // namespace

/// Initial values as PyTorch's Linear: uniform within 1 / sqrt(inputs), biases too.
std::vector<ParameterSpec> mlp_parameters(const MlpShape& s) {
  std::vector<ParameterSpec> specs;
  const auto add = [&](const std::string& name, std::int64_t outputs, std::int64_t inputs) {
    const InitialValue initial = InitialValue::uniform(1.0f / std::sqrt(static_cast<float>(inputs)));
    specs.push_back({name + ".weight", {outputs, inputs}, initial, true});
    specs.push_back({name + ".bias", {outputs}, initial, false});
  };
  add("fc3", s.classes, s.hidden);
  add("fc2", s.hidden, s.hidden);
  specs[fc2_weight].matrix_rows = {s.hidden};
  add("fc1", s.hidden, s.pixels());
  return specs;
}

std::unique_ptr<Model> make_mlp(Device& device, std::int64_t max_batch, ResidentImages images, const MlpShape& shape,
                                const std::function<std::vector<float>(const std::string& name)>& pretrained) {
  return std::make_unique<Mlp>(device, max_batch, std::move(images), shape, pretrained);
}

}  // namespace ddptrain
