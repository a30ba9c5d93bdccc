#include "models/mlp/mlp.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "models/classifier.h"
#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/gather.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"

namespace ddptrain {
namespace {

/// Places in parameters(): backward goes from the last layer to the first.
enum Parameter : std::size_t { fc3_weight, fc3_bias, fc2_weight, fc2_bias, fc1_weight, fc1_bias };

class Mlp final : public Model, public Classifier {
 public:
  Mlp(Device& device, std::int64_t max_batch, ResidentImages images, const MlpShape& shape,
      const std::function<std::vector<float>(const std::string& name)>& pretrained)
      : device_(device),
        gather_(device.get<GatherOps>()),
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

  void forward(const Slice& slice, float gradient_scale, MetricSums* sums, const Reads& reads) override {
    run({slice, data_.train}, gradient_scale, rows(logits_, slice.count), sums, reads);
  }

  void evaluate(const Slice& slice, MetricSums* sums) override {
    run({slice, data_.test}, 0.0f, Tensor{}, sums, [](std::size_t) {});
  }

  std::vector<Prediction> classify(const Slice& slice, MetricSums* sums) override {
    evaluate(slice, sums);
    return predictions_of(device_, rows(logits_, count_));
  }

  void backward(bool accumulate, const Ready& ready) override {
    const Tensor h1 = rows(hidden1_, count_), dh1 = rows(dhidden1_, count_);
    const Tensor h2 = rows(hidden2_, count_), dh2 = rows(dhidden2_, count_);
    linear_.linear_backward(h2, w_[fc3_weight], rows(logits_, count_), dh2, g_[fc3_weight], g_[fc3_bias], accumulate);
    ready(fc3_weight);
    ready(fc3_bias);
    activation_.bias_relu_backward(h2, dh2, 1.0f, g_[fc2_bias], accumulate);
    linear_.linear_backward(h1, w_[fc2_weight], dh2, dh1, g_[fc2_weight], Tensor{}, accumulate);
    ready(fc2_weight);
    ready(fc2_bias);
    activation_.bias_relu_backward(h1, dh1, 1.0f, g_[fc1_bias], accumulate);
    linear_.linear_backward(pixels(), w_[fc1_weight], dh1, Tensor{}, g_[fc1_weight], Tensor{}, accumulate);
    ready(fc1_weight);
    ready(fc1_bias);
  }

  double flops_per_sample() const override { return work().flop(); }
  ModelWork work() const override {
    const auto hidden = static_cast<double>(shape_.hidden);
    const double fc1 = 2.0 * static_cast<double>(shape_.pixels()) * hidden;
    const double fc2 = 2.0 * hidden * hidden;
    const double fc3 = 2.0 * hidden * static_cast<double>(shape_.classes);
    const double after_fc3 = 2.0 * fc3, after_fc2 = after_fc3 + 2.0 * fc2, all = after_fc2 + fc1;
    return {{{"fc1", fc1, fc1}, {"fc2", fc2, 2.0 * fc2}, {"fc3", fc3, 2.0 * fc3}},  // the images need no gradient
            {after_fc3, after_fc3, after_fc2, after_fc2, all, all}};
  }
  std::vector<MemoryUse> memory() const override {
    return {{"activations", total_bytes(buffers_)}, {"data", total_bytes(data_.memory)}};
  }
  const char* unit() const override { return "images"; }

 private:
  Tensor allocate(const Shape& shape) {
    buffers_.push_back(device_.allocate(device_.dtype(), shape));
    return buffers_.back().view(device_.dtype(), shape);
  }
  static Tensor rows(const Tensor& activation, std::int64_t count) { return activation.first(count); }
  Tensor pixels() const { return {images_.data, images_.dtype, {count_, shape_.pixels()}}; }

  void run(const ImageBatch& batch, float gradient_scale, const Tensor& dlogits, MetricSums* sums, const Reads& reads) {
    DDP_CHECK(batch.count > 0 && batch.count <= max_batch_, "mlp: a batch of {}, at most {} fit", batch.count,
              max_batch_);
    count_ = batch.count;
    const Tensor h1 = rows(hidden1_, count_), h2 = rows(hidden2_, count_), logits = rows(logits_, count_);
    gather_.gather_images(batch, rows(images_, count_));
    reads(fc1_weight);
    reads(fc1_bias);
    linear_.linear(pixels(), w_[fc1_weight], Tensor{}, h1);
    activation_.bias_relu_dropout(h1, w_[fc1_bias], Dropout{});
    reads(fc2_weight);
    reads(fc2_bias);
    linear_.linear(h1, w_[fc2_weight], Tensor{}, h2);
    activation_.bias_relu_dropout(h2, w_[fc2_bias], Dropout{});
    reads(fc3_weight);
    reads(fc3_bias);
    linear_.linear(h2, w_[fc3_weight], w_[fc3_bias], logits);
    loss_.softmax_cross_entropy(logits, batch, gradient_scale, dlogits, sums);
  }

  Device& device_;
  GatherOps& gather_;
  LinearOps& linear_;
  ActivationOps& activation_;
  LossOps& loss_;
  MlpShape shape_;
  std::int64_t max_batch_;
  ResidentImages data_;
  std::vector<ParameterSpec> parameters_;
  std::vector<Tensor> w_, g_;  ///< By Parameter.
  std::vector<Buffer> buffers_;
  Tensor images_, hidden1_, dhidden1_, hidden2_, dhidden2_, logits_;
  std::int64_t count_ = 0;
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
  add("fc1", s.hidden, s.pixels());
  return specs;
}

std::unique_ptr<Model> make_mlp(Device& device, std::int64_t max_batch, ResidentImages images, const MlpShape& shape,
                                const std::function<std::vector<float>(const std::string& name)>& pretrained) {
  return std::make_unique<Mlp>(device, max_batch, std::move(images), shape, pretrained);
}

}  // namespace ddptrain
