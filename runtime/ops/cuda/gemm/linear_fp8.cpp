#include "runtime/ops/cuda/gemm/fp8.h"
#include "runtime/ops/cuda/gemm/linear.h"

// Linear layers in FP8. On Hopper both operands of a product must lie along the dimension that is summed over, so the
// backward products take the transposed copies.

namespace ddptrain {

void CudaLinear::linear_fp8(const LinearShape& d, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& y) {
  const cuda::Fp8Matrix left = cuda::fp8_matrix(x), right = cuda::fp8_matrix(weight);
  const cuda::Gemm gemm{.m = d.batch, .n = d.out, .k = d.in, .transpose_b = true, .in = DType::e4m3, .out = dtype()};
  matmul_.gemm(gemm,
               {.a = left.values,
                .b = right.values,
                .c = y.data,
                .vector = bias.data,
                .scale_a = &left.state->inverse_scale,
                .scale_b = &right.state->inverse_scale},
               stream());
}

void CudaLinear::linear_backward_fp8(const LinearShape& d, const Tensor& x, const Tensor& weight, const Tensor& dy,
                                     const Tensor& dx, const Tensor& dweight, bool accumulate) {
  const cuda::Fp8Matrix gradient = cuda::fp8_matrix(dy);
  const auto multiply = [&](cuda::Gemm gemm, const void* left, const cuda::Fp8Matrix& right, void* result) {
    gemm.transpose_b = true;
    gemm.in = DType::e5m2;
    gemm.in_b = DType::e4m3;
    matmul_.gemm(gemm,
                 {.a = left,
                  .b = right.transposed,
                  .c = result,
                  .scale_a = &gradient.state->inverse_scale,
                  .scale_b = &right.state->inverse_scale},
                 stream());
  };
  if (dweight) {
    multiply({.m = d.out, .n = d.in, .k = d.batch, .out = dweight.dtype, .accumulate = accumulate}, gradient.transposed,
             cuda::fp8_matrix(x), dweight.data);
  }
  if (dx) {
    multiply({.m = d.batch, .n = d.in, .k = d.out, .out = dtype()}, gradient.values, cuda::fp8_matrix(weight), dx.data);
  }
}

void CudaLinear::linear_gelu_backward_fp8(const LinearShape& d, const Tensor& weight, const Tensor& dy,
                                          const Tensor& pre, const Tensor& dpre, const Tensor& dbias, bool accumulate) {
  const cuda::Fp8Matrix to = cuda::fp8_output(dpre, stream());
  const auto lay_out = [&](void* memory, void*& product, float*& partials) {
    cuda::Pieces pieces(memory);
    product = pieces.take<std::uint16_t>(static_cast<std::size_t>(pre.size()));
    partials = pieces.take<float>(cuda::fp8_partials(to.rows, to.columns));
    return pieces.bytes();
  };
  void* product = nullptr;
  float* partials = nullptr;
  lay_out(scratch().reserve(lay_out(nullptr, product, partials), stream()), product, partials);
  linear_backward_fp8(d, {}, weight, dy, {product, dtype(), dpre.shape}, {}, false);
  cuda::quantize_gelu_gradient(pre.data, product, to, {dbias, accumulate, partials}, stream());
}

}  // namespace ddptrain
