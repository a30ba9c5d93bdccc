#include "runtime/ops/convolution.h"

#include "runtime/ops/activation.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/image/conv_plans.h"

namespace ddptrain {

namespace {

class CudaConvolution final : public ConvolutionOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const ConvShape shape = check_conv2d("conv2d", x, weight, bias, y, dtype());
    const cuda::ConvTensors tensors{x.data, weight.data, bias.data, y.data};
    const bool fused = bias && plans().fuses_bias_relu(shape);
    plans().run(fused ? cuda::ConvKind::forward_bias_relu : cuda::ConvKind::forward, shape, tensors, false);
    if (!bias || fused) return;
    const Tensor rows{y.data, y.dtype, {y.size() / shape.out, shape.out}};
    device_.get<ActivationOps>().bias_relu_dropout(rows, bias, Dropout{});
  }

  void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       bool accumulate) override {
    const ConvShape shape = check_conv2d_backward(x, weight, dy, dx, dweight, dtype());
    plans().run(cuda::ConvKind::weight_gradient, shape, {x.data, dweight.data, nullptr, dy.data}, accumulate);
    if (dx) plans().run(cuda::ConvKind::data_gradient, shape, {dx.data, weight.data, nullptr, dy.data}, false);
  }

 private:
  /// Made by the first operation.
  cuda::ConvPlans& plans() {
    if (!plans_) {
      plans_ = std::make_unique<cuda::ConvPlans>(device_.precision(), device_.options().memory_format, stream());
    }
    return *plans_;
  }

  std::unique_ptr<cuda::ConvPlans> plans_;
};

}  // namespace

std::unique_ptr<ConvolutionOps> ConvolutionOps::on_cuda(Device& device) {
  return std::make_unique<CudaConvolution>(device);
}

}  // namespace ddptrain
