#include "models/cnn/cnn_kernels.h"

#include <array>

#include "models/cnn/cuda/launch.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/cuda/gemm/matmul.h"

namespace ddptrain {
namespace {

namespace cnn = cuda::cnn;

constexpr std::int64_t kFeatures = 12 * 12 * 64;
constexpr std::int64_t kHidden = 128;
constexpr std::int64_t kWinnerWords = kFeatures / 8;

class FusedCnn final : public CnnKernels {
 public:
  FusedCnn(CudaDevice& device, std::int64_t max_batch)
      : device_(device),
        matmul_(device.get<cuda::MatmulPlans>()),
        features_(device.allocate(DType::bf16, {max_batch, kFeatures})),
        dfeatures_(device.allocate(DType::bf16, {max_batch, kFeatures})),
        winners_(device.allocate(DType::i32, {max_batch, kWinnerWords})),
        hidden_(device.allocate(DType::f32, {max_batch, kHidden})),
        dhidden_(device.allocate(DType::bf16, {max_batch, kHidden})),
        conv_partials_(device.allocate(DType::f32, {device.multiprocessors(), cnn::kConvGradients})),
        head_partials_(device.allocate(DType::f32, {cnn::kHeadBlocks, cnn::kHeadGradients})),
        metrics_(device.allocate(cnn::kHeadBlocks * sizeof(cnn::HeadMetrics))) {}

  std::size_t memory_bytes() const override {
    return features_.bytes() + dfeatures_.bytes() + winners_.bytes() + hidden_.bytes() + dhidden_.bytes() +
           conv_partials_.bytes() + head_partials_.bytes() + metrics_.bytes();
  }

  void forward(const ImageBatch& batch, const CnnTensors& weights, const Dropout& pool_dropout,
               const Dropout& hidden_dropout, float gradient_scale, MetricSums* sums) override {
    images_ = {batch.images.as<std::uint8_t>(), batch.labels.as<std::uint8_t>(), batch.order, batch.step,
               static_cast<int>(batch.count)};
    cnn::conv_forward(images_, conv_weights(weights), pool_dropout, features_.data(),
                      static_cast<std::uint32_t*>(winners_.data()), device_.compute_multiprocessors(),
                      device_.stream());
    multiply({.m = batch.count, .n = kHidden, .k = kFeatures, .transpose_b = true, .out = DType::f32}, features_.data(),
             weights.fc1_weight.data, hidden_.data());
    auto* metrics = static_cast<cnn::HeadMetrics*>(metrics_.data());
    const cnn::HeadWeights head = {weights.fc1_bias.data, weights.fc2_weight.data, weights.fc2_bias.data};
    head_blocks_ = cnn::head_forward_backward(images_, head, pool_dropout.scale(), hidden_dropout,
                                              static_cast<const float*>(hidden_.data()), gradient_scale,
                                              gradient_scale != 0.0f ? dhidden_.data() : nullptr,
                                              static_cast<float*>(head_partials_.data()), metrics, device_.stream());
    metrics_sum_ = {metrics, head_blocks_, images_.count, batch.step, sums};
    if (gradient_scale == 0.0f) cnn::reduce(nullptr, 0, false, metrics_sum_, device_.stream());
  }

  void backward_hidden(const CnnTensors& weights, const CnnTensors& gradients, bool accumulate) override {
    multiply({.m = kHidden,
              .n = kFeatures,
              .k = images_.count,
              .transpose_a = true,
              .out = DType::bf16,
              .accumulate = accumulate},
             dhidden_.data(), features_.data(), gradients.fc1_weight.data);
    multiply({.m = images_.count, .n = kFeatures, .k = kHidden, .out = DType::bf16}, dhidden_.data(),
             weights.fc1_weight.data, dfeatures_.data());
  }

  void backward_rest(const CnnTensors& weights, const CnnTensors& gradients, bool accumulate) override {
    auto* conv = static_cast<float*>(conv_partials_.data());
    const int blocks = cnn::conv_backward(images_, conv_weights(weights), dfeatures_.data(),
                                          static_cast<const std::uint32_t*>(winners_.data()), conv,
                                          device_.compute_multiprocessors(), device_.stream());
    std::array<cnn::Reduction, cnn::kMaxReductions> reductions;
    int count = 0;
    const auto add = [&](const float*& partials, int rows, int stride, const Tensor& gradient) {
      const int size = static_cast<int>(gradient.size());
      reductions[static_cast<std::size_t>(count++)] = {partials, rows, stride, size, gradient.data};
      partials += size;
    };
    const float* part = conv;
    for (const Tensor* gradient :
         {&gradients.conv2_weight, &gradients.conv2_bias, &gradients.conv1_weight, &gradients.conv1_bias}) {
      add(part, blocks, cnn::kConvGradients, *gradient);
    }
    part = static_cast<const float*>(head_partials_.data());
    for (const Tensor* gradient : {&gradients.fc2_weight, &gradients.fc1_bias, &gradients.fc2_bias}) {
      add(part, head_blocks_, cnn::kHeadGradients, *gradient);
    }
    cnn::reduce(reductions.data(), count, accumulate, metrics_sum_, device_.stream());
  }

 private:
  void multiply(cuda::Gemm gemm, const void* a, const void* b, void* c) {
    gemm.in = DType::bf16;
    matmul_.gemm(gemm, {.a = a, .b = b, .c = c}, device_.stream());
  }

  static cnn::ConvWeights conv_weights(const CnnTensors& weights) {
    return {weights.conv1_weight.data, weights.conv1_bias.data, weights.conv2_weight.data, weights.conv2_bias.data};
  }

  CudaDevice& device_;
  cuda::MatmulPlans& matmul_;
  Buffer features_;  ///< [batch, 9216] bf16, without dropout's factor
  Buffer dfeatures_;
  Buffer winners_;  ///< see conv_forward
  Buffer hidden_;   ///< [batch, 128] f32, before bias
  Buffer dhidden_;  ///< bf16
  Buffer conv_partials_;
  Buffer head_partials_;
  Buffer metrics_;
  cnn::Images images_ = {};
  int head_blocks_ = 0;
  cnn::MetricsReduction metrics_sum_ = {};
};

}  // namespace

std::unique_ptr<CnnKernels> make_cnn_kernels(Device& device, const CnnShape& shape, std::int64_t max_batch) {
  if (device.kind() != DeviceKind::cuda || !has_fused_kernels(shape, device.precision())) return nullptr;
  return std::make_unique<FusedCnn>(dynamic_cast<CudaDevice&>(device), max_batch);
}

}  // namespace ddptrain
