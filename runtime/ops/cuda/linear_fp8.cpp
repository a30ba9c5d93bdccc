#include "runtime/core/error.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/cuda/fp8.h"
#include "runtime/ops/cuda/fp8_scales.h"
#include "runtime/ops/cuda/matmul.h"
#include "runtime/ops/expect_tensor.h"
#include "runtime/ops/linear_dims.h"

// Linear layers in FP8. On Hopper both operands of a product must lie along the dimension that is summed over, so the
// backward products take the transposed copies.

namespace ddptrain {

namespace {

cuda::Fp8Matrix matrix_of(const Tensor& tensor) {
  const std::int64_t columns = tensor.shape.back(), rows = tensor.size() / columns;
  auto* values = tensor.as<std::uint8_t>();
  return {.format = tensor.dtype,
          .rows = static_cast<std::uint32_t>(rows),
          .columns = static_cast<std::uint32_t>(columns),
          .values = values,
          .transposed = values + rows * columns,
          .state = tensor.scale->state};
}

/// Checked but for its shape, for checks of which it comes back as one of bf16.
Tensor shape_of(const Tensor& tensor, const char* what, DType format) {
  DDP_CHECK(tensor.data != nullptr && !tensor.shape.empty(), "{} has no data", what);
  DDP_CHECK(tensor.dtype == format, "{} is {}, expected {}", what, name_of(tensor.dtype), name_of(format));
  DDP_CHECK(tensor.scale != nullptr && tensor.scale->format == format, "{} has no scale of {}", what, name_of(format));
  return {tensor.data, DType::bf16, tensor.shape};
}

/// As one of bf16, for checks of its shape.
Tensor shape_of(const Tensor& gradient) { return {gradient.data, DType::bf16, gradient.shape}; }

}  // namespace

Fp8Scale* CudaDevice::make_scale(DType format) {
  DDP_CHECK(options().fp8, "{} on a device without FP8", name_of(format));
  if (!fp8_scales_) fp8_scales_ = std::make_unique<cuda::Fp8Scales>();
  return fp8_scales_->make(format, compute_.get());
}

void CudaDevice::renew_scales() {
  if (fp8_scales_) fp8_scales_->renew(compute_.get());
}

void CudaDevice::forget_magnitudes() {
  if (fp8_scales_) fp8_scales_->forget(compute_.get());
}

cuda::Fp8Matrix CudaDevice::output_fp8(const Tensor& y) {
  shape_of(y, "what becomes FP8", y.dtype);
  cuda::Fp8Matrix to = matrix_of(y);
  DDP_CHECK(fits_fp8(to.rows, to.columns), "a matrix of {} x {} in FP8: multiples of 16 are needed", to.rows,
            to.columns);
  to.first_use = !y.scale->used;
  DDP_CHECK(!to.first_use || !cuda::is_capturing(compute_.get()),
            "a tensor in FP8 must be written once before it is captured in a graph");
  y.scale->used = true;
  return to;
}

void CudaDevice::to_fp8(const Tensor& x, const Tensor& y, const Tensor& sums, bool accumulate) {
  expect_tensor(x, "to_fp8: x", dtype(), y.shape);
  const cuda::Fp8Matrix to = output_fp8(y);
  if (sums) expect_gradient(sums, "to_fp8: sums", {to.columns});
  float* partials =
      sums ? scratch_.reserve_elements<float>(cuda::fp8_partials(to.rows, to.columns), compute_.get()) : nullptr;
  cuda::quantize(x.data, to, {sums, accumulate, partials}, compute_.get());
}

void CudaDevice::linear_fp8(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  const LinearDims d = check_linear(shape_of(x, "linear: x", DType::e4m3),
                                    shape_of(weight, "linear: weight", DType::e4m3), bias, y, dtype());
  const cuda::Fp8Matrix left = matrix_of(x), right = matrix_of(weight);
  const cuda::Gemm gemm{.m = d.batch, .n = d.out, .k = d.in, .transpose_b = true, .in = DType::e4m3, .out = dtype()};
  matmul().gemm(gemm,
                {.a = left.values,
                 .b = right.values,
                 .c = y.data,
                 .vector = bias.data,
                 .scale_a = &left.state->inverse_scale,
                 .scale_b = &right.state->inverse_scale},
                compute_.get());
}

void CudaDevice::linear_backward_fp8(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                     const Tensor& dweight, bool accumulate) {
  const LinearDims d =
      check_linear_backward(dweight ? shape_of(x, "linear_backward: x", DType::e4m3) : Tensor{},
                            shape_of(weight, "linear_backward: weight", DType::e4m3),
                            shape_of(dy, "linear_backward: dy", DType::e5m2), dx, shape_of(dweight), Tensor{}, dtype());
  const cuda::Fp8Matrix gradient = matrix_of(dy);
  const auto multiply = [&](cuda::Gemm gemm, const void* left, const cuda::Fp8Matrix& right, void* result) {
    gemm.transpose_b = true;
    gemm.in = DType::e5m2;
    gemm.in_b = DType::e4m3;
    matmul().gemm(gemm,
                  {.a = left,
                   .b = right.transposed,
                   .c = result,
                   .scale_a = &gradient.state->inverse_scale,
                   .scale_b = &right.state->inverse_scale},
                  compute_.get());
  };
  if (dweight) {
    expect_gradient(dweight, "linear_backward: dweight", {d.out, d.in});
    multiply({.m = d.out, .n = d.in, .k = d.batch, .out = dweight.dtype, .accumulate = accumulate}, gradient.transposed,
             matrix_of(x), dweight.data);
  }
  if (dx) {
    multiply({.m = d.batch, .n = d.in, .k = d.out, .out = dtype()}, gradient.values, matrix_of(weight), dx.data);
  }
}

void CudaDevice::gelu_fp8(const Tensor& pre, const Tensor& y) {
  shape_of(y, "gelu: y", DType::e4m3);
  expect_tensor(shape_of(y), "gelu: y", dtype(), pre.shape);
  cuda::quantize_gelu(pre.data, output_fp8(y), compute_.get());
}

void CudaDevice::linear_gelu_backward_fp8(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                          const Tensor& dbias, bool accumulate) {
  shape_of(dpre, "linear_gelu_backward: dpre", DType::e5m2);
  expect_tensor(pre, "linear_gelu_backward: pre", dtype(), dpre.shape);
  if (dbias) expect_gradient(dbias, "linear_gelu_backward: dbias", {dpre.shape.back()});
  const cuda::Fp8Matrix to = output_fp8(dpre);
  const auto lay_out = [&](void* memory, void*& product, float*& partials) {
    cuda::Pieces pieces(memory);
    product = pieces.take<std::uint16_t>(static_cast<std::size_t>(pre.size()));
    partials = pieces.take<float>(cuda::fp8_partials(to.rows, to.columns));
    return pieces.bytes();
  };
  void* product = nullptr;
  float* partials = nullptr;
  lay_out(scratch_.reserve(lay_out(nullptr, product, partials), compute_.get()), product, partials);
  linear_backward_fp8({}, weight, dy, {product, dtype(), dpre.shape}, {}, false);
  cuda::quantize_gelu_gradient(pre.data, product, to, {dbias, accumulate, partials}, compute_.get());
}

}  // namespace ddptrain
