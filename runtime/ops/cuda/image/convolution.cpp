#include "runtime/ops/convolution.h"

#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/image/conv_plans.h"
#include "runtime/ops/expect_tensor.h"

namespace ddptrain {

namespace {

cuda::ConvShape shape_of(const char* what, const Tensor& x, const Tensor& weight, DType dtype) {
  DDP_CHECK(x.shape.size() == 4 && weight.shape.size() == 4, "{}: x and weight must have four dimensions", what);
  const cuda::ConvShape s{x.dim(0), x.dim(1), x.dim(2), x.dim(3), weight.dim(0), weight.dim(1)};
  expect_tensor(x, what, dtype, x.shape);
  expect_tensor(weight, what, dtype, {s.out, s.kernel, s.kernel, s.in});
  DDP_CHECK(s.out_height() > 0 && s.out_width() > 0, "{}: the kernel is larger than the image", what);
  return s;
}

Shape output_of(const cuda::ConvShape& s) { return {s.batch, s.out_height(), s.out_width(), s.out}; }

}  // namespace

namespace {

class CudaConvolution final : public ConvolutionOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const cuda::ConvShape shape = shape_of("conv2d: x, weight", x, weight, dtype());
    expect_tensor(y, "conv2d: y", dtype(), output_of(shape));
    if (bias) expect_tensor(bias, "conv2d: bias", dtype(), {shape.out});
    const cuda::ConvTensors tensors{x.data, weight.data, bias.data, y.data};
    const bool fused = bias && plans().fuses_bias_relu(shape);
    plans().run(fused ? cuda::ConvKind::forward_bias_relu : cuda::ConvKind::forward, shape, tensors, false);
    if (!bias || fused) return;
    const Tensor rows{y.data, y.dtype, {y.size() / shape.out, shape.out}};
    device_.get<ActivationOps>().bias_relu_dropout(rows, bias, Dropout{});
  }

  void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       bool accumulate) override {
    const cuda::ConvShape shape = shape_of("conv2d_backward: x, weight", x, weight, dtype());
    expect_tensor(dy, "conv2d_backward: dy", dtype(), output_of(shape));
    expect_tensor(dweight, "conv2d_backward: dweight", dtype(), weight.shape);
    if (dx) expect_tensor(dx, "conv2d_backward: dx", dtype(), x.shape);
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
