#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/fp8.h"
#include "runtime/backend/cuda/fp8_scales.h"
#include "runtime/backend/cuda/matmul.h"

// Linear layers in FP8: e4m3 for x and weight, e5m2 for dy. A layer is one that had a bias in its forward pass. On
// Hopper both operands must lie along the dimension that is summed over, so the backward products take transposed
// copies.

namespace ddptrain {

namespace cuda {

struct Fp8Source {
  Tensor tensor;  ///< bf16 [rows, columns]
  Fp8Role role;
  bool values, transposed;  ///< What is wanted.
};

}  // namespace cuda

using cuda::Fp8;
using cuda::Fp8Matrix;
using cuda::Fp8Role;

bool CudaBackend::uses_fp8(const LinearDims& d, const Tensor& weight, bool has_bias) const {
  return options().fp8 && d.batch % 16 == 0 && d.in % 16 == 0 && d.out % 16 == 0 &&
         (has_bias || (fp8_scales_ && fp8_scales_->knows(weight.data)));
}

std::vector<Fp8Matrix> CudaBackend::to_fp8(const Tensor& weight, const std::vector<cuda::Fp8Source>& sources) {
  const auto lay_out = [&](void* memory, std::vector<Fp8Matrix>& matrices) {
    cuda::Pieces pieces(memory);
    matrices.clear();
    for (const cuda::Fp8Source& source : sources) {
      const auto count = static_cast<std::size_t>(source.tensor.size());
      Fp8Matrix matrix;
      if (source.values) matrix.values = pieces.take<std::uint8_t>(count);
      if (source.transposed) matrix.transposed = pieces.take<std::uint8_t>(count);
      matrix.inverse_scale = pieces.take<float>(1);
      matrices.push_back(matrix);
    }
    return pieces.bytes();
  };
  std::vector<Fp8Matrix> matrices;
  lay_out(scratch_.reserve(lay_out(nullptr, matrices), compute_.get()), matrices);
  if (!fp8_scales_) fp8_scales_ = std::make_unique<cuda::Fp8Scales>();
  for (std::size_t i = 0; i < sources.size(); ++i) {
    const Tensor& tensor = sources[i].tensor;
    const auto [scale, first_use] = fp8_scales_->find(weight.data, sources[i].role, compute_.get());
    const Fp8 format = sources[i].role == Fp8Role::output_gradient ? Fp8::e5m2 : Fp8::e4m3;
    cuda::quantize(tensor.data, tensor.dim(0), tensor.dim(1), format, scale, first_use, matrices[i], compute_.get());
  }
  return matrices;
}

void CudaBackend::linear_fp8(const LinearDims& d, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Tensor& y) {
  const std::vector<Fp8Matrix> fp8 =
      to_fp8(weight, {{x, Fp8Role::input, true, false}, {weight, Fp8Role::weight, true, false}});
  const cuda::Gemm gemm{
      .m = d.batch, .n = d.out, .k = d.in, .transpose_b = true, .out = dtype(), .fp8_a = Fp8::e4m3, .fp8_b = Fp8::e4m3};
  matmul().gemm(gemm,
                {.a = fp8[0].values,
                 .b = fp8[1].values,
                 .c = y.data,
                 .vector = bias.data,
                 .scale_a = fp8[0].inverse_scale,
                 .scale_b = fp8[1].inverse_scale},
                compute_.get());
}

void CudaBackend::linear_backward_fp8(const LinearDims& d, const Tensor& x, const Tensor& weight, const Tensor& dy,
                                      const Tensor& dx, const Tensor& dweight, bool accumulate) {
  const bool wants_dx = static_cast<bool>(dx), wants_dweight = static_cast<bool>(dweight);
  std::vector<cuda::Fp8Source> sources = {{dy, Fp8Role::output_gradient, wants_dx, wants_dweight}};
  if (wants_dx) sources.push_back({weight, Fp8Role::weight, false, true});
  if (wants_dweight) sources.push_back({x, Fp8Role::input, false, true});
  const std::vector<Fp8Matrix> fp8 = to_fp8(weight, sources);
  cuda::Gemm gemm{.transpose_b = true, .fp8_a = Fp8::e5m2, .fp8_b = Fp8::e4m3};
  const auto multiply = [&](const void* left, const Fp8Matrix& right, const Tensor& result) {
    matmul().gemm(gemm,
                  {.a = left,
                   .b = right.transposed,
                   .c = result.data,
                   .scale_a = fp8.front().inverse_scale,
                   .scale_b = right.inverse_scale},
                  compute_.get());
  };
  if (wants_dweight) {
    gemm.m = d.out, gemm.n = d.in, gemm.k = d.batch;
    gemm.out = dweight.dtype;
    gemm.accumulate = accumulate;
    multiply(fp8.front().transposed, fp8.back(), dweight);
  }
  if (wants_dx) {
    gemm.m = d.batch, gemm.n = d.in, gemm.k = d.out;
    gemm.out = dtype();
    gemm.accumulate = false;
    multiply(fp8.front().values, fp8[1], dx);
  }
}

}  // namespace ddptrain
