#include "models/cnn/cnn.h"

#include <cmath>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/convolution.h"
#include "runtime/ops/images.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"

namespace ddptrain {

namespace {

/// Places in parameters(): the order in which backward lets go of them.
enum Parameter : std::size_t {
  fc1_weight,
  fc2_weight,
  fc2_bias,
  fc1_bias,
  conv2_weight,
  conv2_bias,
  conv1_weight,
  conv1_bias,
  kParameterCount
};

constexpr std::int64_t kKernel = 3;
constexpr float kPoolDropout = 0.25f;
constexpr float kHiddenDropout = 0.5f;
constexpr std::uint32_t kPoolSite = 1;
constexpr std::uint32_t kHiddenSite = 2;

CnnTensors named(const std::vector<Tensor>& t) {
  return {t[conv1_weight], t[conv1_bias], t[conv2_weight], t[conv2_bias],
          t[fc1_weight],   t[fc1_bias],   t[fc2_weight],   t[fc2_bias]};
}

/// The network composed of the device's primitive operations, with the activations that backward needs.
class CnnLayers {
 public:
  CnnLayers(Device& device, const CnnShape& shape, std::int64_t max_batch, MemoryFormat memory_format)
      : device_(device),
        image_ops_(device.get<ImageOps>()),
        convolution_(device.get<ConvolutionOps>()),
        activation_(device.get<ActivationOps>()),
        linear_(device.get<LinearOps>()),
        loss_(device.get<LossOps>()),
        shape_(shape) {
    const std::int64_t h = shape.height;
    const std::int64_t w = shape.width;
    convolution_.use(memory_format);
    images_ = allocate(device.dtype(), {max_batch, h, w, 1});
    conv1_ = allocate(device.dtype(), {max_batch, h - 2, w - 2, shape.conv1});
    dconv1_ = allocate(device.dtype(), conv1_.shape);
    conv2_ = allocate(device.dtype(), {max_batch, h - 4, w - 4, shape.conv2});
    pooled_ = allocate(device.dtype(), {max_batch, shape.pooled_height(), shape.pooled_width(), shape.conv2});
    dpooled_ = allocate(device.dtype(), pooled_.shape);
    winner_ = allocate(DType::u8, pooled_.shape);
    hidden_ = allocate(device.dtype(), {max_batch, shape.hidden});
    dhidden_ = allocate(device.dtype(), hidden_.shape);
    logits_ = allocate(device.dtype(), {max_batch, shape.classes});
  }

  void begin(const ImageBatch& batch, const Dropout& pool_dropout, const Dropout& hidden_dropout) {
    batch_ = batch;
    pool_dropout_ = pool_dropout;
    hidden_dropout_ = hidden_dropout;
    image_ops_.gather_images(batch, rows(images_));
  }

  void forward_features(const CnnTensors& w) {
    convolution_.conv2d(rows(images_), w.conv1_weight, w.conv1_bias, rows(conv1_));
    convolution_.conv2d(rows(conv1_), w.conv2_weight, Tensor{}, rows(conv2_));
    image_ops_.bias_relu_pool_dropout(rows(conv2_), w.conv2_bias, pool_dropout_, rows(pooled_), rows(winner_));
  }

  /// Leaves the gradient of the logits in their place where `gradient_scale` is not 0.
  void forward_head(const CnnTensors& w, float gradient_scale, MetricSums* sums) {
    linear_.linear(features(pooled_), w.fc1_weight, Tensor{}, rows(hidden_));
    activation_.bias_relu_dropout(rows(hidden_), w.fc1_bias, hidden_dropout_);
    linear_.linear(rows(hidden_), w.fc2_weight, w.fc2_bias, rows(logits_));
    loss_.softmax_cross_entropy(rows(logits_), batch_, gradient_scale,
                                gradient_scale != 0.0f ? rows(logits_) : Tensor{}, sums);
  }

  void backward_head(const CnnTensors& w, const CnnTensors& g, bool accumulate, const Model::Ready& ready) {
    linear_.linear_backward(rows(hidden_), w.fc2_weight, rows(logits_), rows(dhidden_), g.fc2_weight, g.fc2_bias,
                            accumulate);
    ready(fc2_weight);
    ready(fc2_bias);
    activation_.bias_relu_backward(rows(hidden_), rows(dhidden_), hidden_dropout_.scale(), g.fc1_bias, accumulate);
    ready(fc1_bias);
    linear_.linear_backward(features(pooled_), w.fc1_weight, rows(dhidden_), features(dpooled_), g.fc1_weight, Tensor{},
                            accumulate);
    ready(fc1_weight);
  }

  void backward_features(const CnnTensors& w, const CnnTensors& g, bool accumulate, const Model::Ready& ready) {
    const Tensor& dconv2 = conv2_;  // its values are not needed any more
    image_ops_.bias_relu_pool_dropout_backward(rows(dpooled_), rows(winner_), pool_dropout_, rows(dconv2), g.conv2_bias,
                                               accumulate);
    ready(conv2_bias);
    convolution_.conv2d_backward(rows(conv1_), w.conv2_weight, rows(dconv2), rows(dconv1_), g.conv2_weight, accumulate);
    ready(conv2_weight);
    activation_.bias_relu_backward(rows(conv1_), rows(dconv1_), 1.0f, g.conv1_bias, accumulate);
    ready(conv1_bias);
    convolution_.conv2d_backward(rows(images_), w.conv1_weight, rows(dconv1_), Tensor{}, g.conv1_weight, accumulate);
    ready(conv1_weight);
  }

  std::size_t memory_bytes() const { return total_bytes(buffers_); }

 private:
  Tensor allocate(DType dtype, const Shape& shape) {
    buffers_.push_back(device_.allocate(dtype, shape));
    return buffers_.back().view(dtype, shape);
  }
  Tensor rows(const Tensor& activation) const { return activation.first(batch_.count); }
  Tensor features(const Tensor& activation) const {
    return {activation.data, activation.dtype, {batch_.count, shape_.features()}};
  }

  Device& device_;
  ImageOps& image_ops_;
  ConvolutionOps& convolution_;
  ActivationOps& activation_;
  LinearOps& linear_;
  LossOps& loss_;
  CnnShape shape_;
  ImageBatch batch_;
  Dropout pool_dropout_;
  Dropout hidden_dropout_;
  std::vector<Buffer> buffers_;
  Tensor images_;
  Tensor conv1_;
  Tensor dconv1_;
  Tensor conv2_;
  Tensor pooled_;
  Tensor dpooled_;
  Tensor winner_;
  Tensor hidden_;
  Tensor dhidden_;
  Tensor logits_;
};

class Cnn final : public Model {
 public:
  Cnn(Device& device, const CnnOptions& options, ResidentImages images, const CnnShape& shape)
      : options_(options), images_(std::move(images)), shape_(shape), parameters_(cnn_parameters(shape)) {
    DDP_CHECK(options.max_batch > 0, "cnn: a batch of {}", options.max_batch);
    for (ParameterSpec& spec : parameters_) {
      if (options.pretrained) spec.initial.read = [name = spec.name, read = options.pretrained] { return read(name); };
    }
    if (device.options().fused) kernels_ = make_cnn_kernels(device, shape, options.max_batch);
    stands_for_kernels_ = device.options().fused && device.kind() == DeviceKind::cpu && device.has_own_memory() &&
                          has_fused_kernels(shape, device.precision());
    check_memory_format(device, options.memory_format);
    if (!fused()) layers_ = std::make_unique<CnnLayers>(device, shape, options.max_batch, options.memory_format);
  }

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }

  void bind(const ModelTensors& tensors) override {
    check_fits("cnn", parameters_, tensors, false);
    weights_ = named(tensors.weights);
    gradients_ = named(tensors.gradients);
  }

  /// Fused kernels run the whole network.
  std::vector<Unit> units() const override {
    if (fused()) return {{"cnn", 0, kParameterCount}};
    return {{"features", conv2_weight, 4}, {"head", fc1_weight, 4}};
  }

  void begin(const MicroBatch& batch) override {
    const Slice& slice = batch.slice;
    DDP_CHECK(slice.count > 0 && slice.count <= options_.max_batch, "cnn: a batch of {}, at most {} fit", slice.count,
              options_.max_batch);
    batch_ = batch;
    if (!kernels_)
      layers_->begin(images_of(batch), dropout(kPoolDropout, kPoolSite), dropout(kHiddenDropout, kHiddenSite));
  }

  void forward(std::size_t unit) override {
    if (kernels_) {
      kernels_->forward(images_of(batch_), weights_, dropout(kPoolDropout, kPoolSite),
                        dropout(kHiddenDropout, kHiddenSite), batch_.gradient_scale, batch_.sums);
      return;
    }
    if (unit == 0) {
      layers_->forward_features(weights_);
      return;
    }
    layers_->forward_head(weights_, batch_.gradient_scale, batch_.sums);
  }

  void backward(std::size_t unit, bool accumulate, const Ready& ready) override {
    if (!kernels_) {
      if (unit == 0) {
        layers_->backward_features(weights_, gradients_, accumulate, ready);
        return;
      }
      layers_->backward_head(weights_, gradients_, accumulate, ready);
      return;
    }
    kernels_->backward_hidden(weights_, gradients_, accumulate);
    ready(fc1_weight);
    kernels_->backward_rest(weights_, gradients_, accumulate);
    for (std::size_t i = fc1_weight + 1; i < kParameterCount; ++i) ready(i);
  }

  double flops_per_sample() const override { return work().flop(); }
  ModelWork work() const override {
    const auto product = [](std::int64_t outputs, std::int64_t inputs) {
      return 2.0 * static_cast<double>(outputs) * static_cast<double>(inputs);
    };
    const std::int64_t c1 = shape_.conv1;
    const std::int64_t c2 = shape_.conv2;
    const std::int64_t h = shape_.height;
    const std::int64_t w = shape_.width;
    const double conv1 = product((h - 2) * (w - 2) * c1, kKernel * kKernel);
    const double conv2 = product((h - 4) * (w - 4) * c2, kKernel * kKernel * c1);
    const double fc1 = product(shape_.hidden, shape_.features());
    const double fc2 = product(shape_.classes, shape_.hidden);
    ModelWork work;  // the images need no gradient
    work.layers = {
        {"conv1", conv1, conv1}, {"conv2", conv2, 2.0 * conv2}, {"fc1", fc1, 2.0 * fc1}, {"fc2", fc2, 2.0 * fc2}};
    const double linear = 2.0 * (fc1 + fc2);
    const double all = linear + 2.0 * conv2 + conv1;
    work.ready_after.assign(kParameterCount, all);
    work.ready_after[fc1_weight] = linear;
    if (fused()) return work;
    for (const Parameter parameter : {fc2_weight, fc2_bias}) work.ready_after[parameter] = 2.0 * fc2;
    work.ready_after[fc1_bias] = 2.0 * fc2;
    work.ready_after[conv2_bias] = linear;
    work.ready_after[conv2_weight] = linear + 2.0 * conv2;
    return work;
  }
  std::vector<MemoryUse> memory() const override {
    const std::size_t activations = kernels_ ? kernels_->memory_bytes()
                                    : stands_for_kernels_
                                        ? static_cast<std::size_t>(options_.max_batch) * bytes_per_image()
                                        : layers_->memory_bytes();
    return {{"activations", activations}, {"data", total_bytes(images_.memory)}};
  }
  const char* sample_unit() const override { return "images"; }

 private:
  void check_memory_format(const Device& device, MemoryFormat format) const {
    const bool on_gpu = device.kind() == DeviceKind::cuda || device.has_own_memory();
    if (format == MemoryFormat::nchw && !on_gpu) {
      usage_error("--memory-format nchw: CPUs compute in NHWC only. Leave it out, or use a GPU.");
    }
    if (format != MemoryFormat::automatic && fused()) {
      usage_error("--memory-format {}: the fused kernels have a layout of their own. Add --fused off, or leave it out.",
                  format == MemoryFormat::nchw ? "nchw" : "nhwc");
    }
  }
  bool fused() const { return kernels_ || stands_for_kernels_; }
  /// Memory that fused kernels keep of an image between their parts: features and their gradient in bf16, the places of
  /// the largest elements in 4 bits, the hidden layer in f32 and its gradient in bf16.
  std::size_t bytes_per_image() const {
    const auto features = static_cast<std::size_t>(shape_.features());
    return 2 * 2 * features + features / 2 + (4 + 2) * static_cast<std::size_t>(shape_.hidden);
  }
  ImageBatch images_of(const MicroBatch& batch) const {
    return {batch.slice, batch.training ? images_.train : images_.test};
  }
  Dropout dropout(float rate, std::uint32_t site) const {
    const bool drops = options_.dropout && batch_.training;
    return {drops ? rate : 0.0f, options_.seed, site, batch_.slice.order.first, batch_.slice.step};
  }

  CnnOptions options_;
  ResidentImages images_;
  CnnShape shape_;
  std::vector<ParameterSpec> parameters_;
  CnnTensors weights_;
  CnnTensors gradients_;
  MicroBatch batch_;
  std::unique_ptr<CnnKernels> kernels_;
  bool stands_for_kernels_ = false;    ///< On a device that stands for a GPU (make_meta_device()): computes nothing.
  std::unique_ptr<CnnLayers> layers_;  ///< Without fused kernels.
};

}  // namespace

/// Initial values as PyTorch's Conv2d and Linear: uniform within 1 / sqrt(inputs of an output), biases too.
std::vector<ParameterSpec> cnn_parameters(const CnnShape& s) {
  const auto within = [](std::int64_t fan_in) {
    return InitialValue::uniform(1.0f / std::sqrt(static_cast<float>(fan_in)));
  };
  const InitialValue conv1 = within(kKernel * kKernel);
  const InitialValue conv2 = within(kKernel * kKernel * s.conv1);
  const InitialValue fc1 = within(s.features());
  const InitialValue fc2 = within(s.hidden);
  std::vector<ParameterSpec> specs = {{"fc1.weight", {s.hidden, s.features()}, fc1, true},
                                      {"fc2.weight", {s.classes, s.hidden}, fc2, true},
                                      {"fc2.bias", {s.classes}, fc2, false},
                                      {"fc1.bias", {s.hidden}, fc1, false},
                                      {"conv2.weight", {s.conv2, kKernel, kKernel, s.conv1}, conv2, true},
                                      {"conv2.bias", {s.conv2}, conv2, false},
                                      {"conv1.weight", {s.conv1, kKernel, kKernel, 1}, conv1, true},
                                      {"conv1.bias", {s.conv1}, conv1, false}};
  for (ParameterSpec& spec : specs) {  // all filters of a convolution are a matrix
    if (spec.name == "fc1.weight" || spec.name == "conv2.weight") spec.matrix_rows = {spec.shape[0]};
  }
  return specs;
}

std::unique_ptr<Model> make_cnn(Device& device, const CnnOptions& options, ResidentImages images,
                                const CnnShape& shape) {
  return std::make_unique<Cnn>(device, options, std::move(images), shape);
}

}  // namespace ddptrain
