#include "runtime/ops/linear.h"

#include <string>
#include <vector>

#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/few_rows.h"
#include "runtime/ops/cuda/gemm/fp8.h"
#include "runtime/ops/cuda/gemm/gelu_product.h"
#include "runtime/ops/cuda/gemm/linear_kernels.h"
#include "runtime/ops/cuda/gemm/matmul.h"
#include "runtime/ops/cuda/gemm/swiglu_product.h"
#include "runtime/ops/cuda/gemm/tuner.h"
#include "runtime/ops/gated.h"

namespace ddptrain {

namespace {

class CudaLinear final : public LinearOps, CudaOps {
 public:
  explicit CudaLinear(Device& device) : CudaOps(device), matmul_(device.get<cuda::MatmulPlans>()), tuner_(device) {}

  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const LinearShape d = check_linear(x, weight, bias, y, dtype());
    if (is_fp8(x.dtype)) {
      linear_fp8(d, x, weight, bias, y);
      return;
    }
    if (cuda::has_few_rows(x, weight)) {
      cuda::linear_of_few_rows({.x = x, .weight = weight, .bias = bias, .product = y}, multiprocessors(), stream());
      return;
    }
    const cuda::Gemm gemm{d.batch, d.out, d.in, false, true, dtype(), dtype(), false};
    matmul_.gemm(gemm, {.a = x.data, .b = weight.data, .c = y.data, .vector = bias.data}, stream());
  }

  void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       const Tensor& dbias, bool accumulate) override {
    const LinearShape d = check_linear_backward(x, weight, dy, dx, dweight, dbias, dtype());
    if (is_fp8(dy.dtype)) {
      linear_backward_fp8(d, x, weight, dy, dx, dweight, accumulate);
      return;
    }
    if (dweight) {
      const cuda::Gemm gemm{d.out, d.in, d.batch, true, false, dtype(), dweight.dtype, accumulate};
      matmul_.gemm(gemm, {.a = dy.data, .b = x.data, .c = dweight.data}, stream());
    }
    if (dbias) cuda::sum_columns(dy, dbias, accumulate, scratch(), stream());
    if (!dx) return;
    const cuda::Gemm gemm{d.batch, d.in, d.out, false, false, dtype(), dtype(), false};
    matmul_.gemm(gemm, {.a = dy.data, .b = weight.data, .c = dx.data}, stream());
  }

  void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre, const Tensor& y,
                   bool again) override {
    const auto separate = [&] {
      linear(x, weight, bias, pre);
      gelu(pre, y);
      return true;
    };
    if (is_fp8(x.dtype) || is_fp8(y.dtype) || !bias || cuda::has_few_rows(x, weight)) {
      separate();
      return;
    }
    const LinearShape d = check_linear(x, weight, bias, pre, dtype());
    check_gelu(pre, y, dtype());
    const cuda::Gemm gemm{d.batch, d.out, d.in, false, true, dtype(), dtype(), false};
    const cuda::GemmTensors tensors{
        .a = x.data, .b = weight.data, .c = y.data, .vector = bias.data, .matrix = pre.data};
    const auto in_epilogue = [&] { return matmul_.try_gemm(gemm, cuda::Epilogue::gelu_bias, tensors, stream()); };
    const auto by_tiles = [&] {
      return cuda::try_linear_gelu(x, weight, bias, pre, y, device_.resident_pairs(), stream());
    };
    std::vector<cuda::Tuner::Way> ways = {{"separate", separate}, {"gelu by tiles", by_tiles}};
    if (!again) ways.push_back({"gelu in the epilogue", in_epilogue});
    tuner_.run(again ? "linear and gelu that repeats" : "linear and gelu", gemm, ways);
  }

  void gelu(const Tensor& pre, const Tensor& y) override {
    check_gelu(pre, y, dtype());
    if (is_fp8(y.dtype)) {
      cuda::quantize_gelu(pre.data, cuda::fp8_output(y, stream()), stream());
      return;
    }
    cuda::gelu(pre, y, stream());
  }

  void linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                            const Tensor& dbias, bool accumulate) override {
    const LinearShape d = check_linear_gelu_backward(weight, dy, pre, dpre, dbias, dtype());
    if (is_fp8(dy.dtype)) {
      linear_gelu_backward_fp8(d, weight, dy, pre, dpre, dbias, accumulate);
      return;
    }
    const cuda::Gemm gemm{d.batch, d.in, d.out, false, false, dtype(), dtype(), false};
    const cuda::GemmTensors tensors{.a = dy.data, .b = weight.data, .c = dpre.data, .matrix = pre.data};
    Tensor sums = dbias;
    const auto separate = [&] {
      matmul_.gemm(gemm, {.a = dy.data, .b = weight.data, .c = dpre.data}, stream());
      cuda::gelu_backward(pre, dpre, sums, accumulate, scratch(), stream());
      return true;
    };
    const auto in_epilogue = [&] {
      if (!matmul_.try_gemm(gemm, cuda::Epilogue::gelu_gradient, tensors, stream())) return false;
      cuda::sum_columns(dpre, sums, accumulate, scratch(), stream());
      return true;
    };
    const auto by_tiles = [&] {
      return cuda::try_linear_gelu_backward(weight, dy, pre, dpre, sums, accumulate, device_.resident_pairs(),
                                            scratch(), stream());
    };
    const std::vector<cuda::Tuner::Way> ways = {
        {"separate", separate}, {"gelu in the epilogue", in_epilogue}, {"gelu by tiles", by_tiles}};
    const std::string operation = "gelu gradient";
    if (accumulate && tuner_.is_new(operation, gemm, ways)) {
      // Timing must not add to an accumulator again and again.
      const Buffer trial = device_.allocate(dbias.dtype, dbias.shape);
      sums = trial.view(dbias.dtype, dbias.shape);
      tuner_.run(operation, gemm, ways);
      device_.synchronize();
      sums = dbias;
    }
    tuner_.run(operation, gemm, ways);
  }

  void linear_swiglu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                     const Tensor& y) override {
    const auto separate = [&] {
      linear(x, weight, bias, pre);
      device_.get<GatedOps>().swiglu(pre, y);
      return true;
    };
    if (is_fp8(x.dtype) || is_fp8(y.dtype)) {
      separate();
      return;
    }
    const LinearShape d = check_linear(x, weight, bias, pre, dtype());
    check_swiglu("linear_swiglu", pre, y, {}, dtype());
    if (cuda::has_few_rows(x, weight)) {
      cuda::linear_of_few_rows({.x = x, .weight = weight, .bias = bias, .product = pre, .swiglu = y}, multiprocessors(),
                               stream());
      return;
    }
    if (bias) {
      separate();
      return;
    }
    const cuda::Gemm gemm{d.batch, d.out, d.in, false, true, dtype(), dtype(), false};
    const auto fused = [&] { return cuda::try_linear_swiglu(x, weight, pre, y, device_.resident_pairs(), stream()); };
    tuner_.run("linear and SwiGLU", gemm, {{"separate", separate}, {"SwiGLU in the epilogue", fused}});
  }

  void linear_swiglu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& product,
                              const Tensor& dpre, const Tensor& y) override {
    const LinearShape d = check_linear_backward({}, weight, dy, product, {}, {}, dtype());
    const auto separate = [&] {
      linear_backward({}, weight, dy, product, {}, {}, false);
      device_.get<GatedOps>().swiglu_backward(pre, product, dpre, y);
      return true;
    };
    if (is_fp8(dy.dtype) || is_fp8(y.dtype)) {
      separate();
      return;
    }
    check_swiglu("linear_swiglu_backward", pre, product, dpre, dtype());
    if (y) check_swiglu("linear_swiglu_backward", pre, y, {}, dtype());
    const cuda::Gemm gemm{d.batch, d.in, d.out, false, false, dtype(), dtype(), false};
    const auto fused = [&](cuda::FinishingWarps warps) {
      return [=, this] {
        return cuda::try_linear_swiglu_backward(weight, dy, pre, dpre, y, warps, device_.resident_pairs(), stream());
      };
    };
    tuner_.run(y ? "SwiGLU gradient and SwiGLU again" : "SwiGLU gradient", gemm,
               {{"separate", separate},
                {"SwiGLU in the epilogue", fused(cuda::FinishingWarps::three)},
                {"SwiGLU in the epilogue by seven warps", fused(cuda::FinishingWarps::seven)}});
  }

  void norm_linear(const AddedNorm& norm, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const Tensor x = norm_here(norm, weight);
    if (!x) return linear(device_.get<RmsNormOps>().add_rms_norm(norm), weight, bias, y);
    check_linear(x, weight, bias, y, dtype());
    cuda::linear_of_few_rows({.x = x, .weight = weight, .bias = bias, .product = y, .norm = &norm}, multiprocessors(),
                             stream());
  }

  void norm_linear_swiglu(const AddedNorm& norm, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                          const Tensor& y) override {
    const Tensor x = is_fp8(y.dtype) ? Tensor{} : norm_here(norm, weight);
    if (!x) return linear_swiglu(device_.get<RmsNormOps>().add_rms_norm(norm), weight, bias, pre, y);
    check_linear(x, weight, bias, pre, dtype());
    check_swiglu("norm_linear_swiglu", pre, y, {}, dtype());
    cuda::linear_of_few_rows({.x = x, .weight = weight, .bias = bias, .product = pre, .swiglu = y, .norm = &norm},
                             multiprocessors(), stream());
  }

 private:
  /// The residual as a matrix, if the kernel for few rows computes the norm, too.
  static Tensor norm_here(const AddedNorm& norm, const Tensor& weight) {
    if (!cuda::has_few_rows(norm, weight)) return {};
    const Tensor& x = norm.residual;
    check_add_rms_norm(x, norm.branch, {}, norm.weight, norm.sum, norm.y, norm.statistics, x.dtype);
    return {x.data, x.dtype, {1, x.size()}};
  }

  // The operations on tensors in FP8, which have been checked. On Hopper both operands of a product must lie along the
  // dimension that is summed over, so the backward products take the transposed copies.

  void linear_fp8(const LinearShape& d, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
    const cuda::Fp8Matrix left = cuda::fp8_matrix(x);
    const cuda::Fp8Matrix right = cuda::fp8_matrix(weight);
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

  void linear_backward_fp8(const LinearShape& d, const Tensor& x, const Tensor& weight, const Tensor& dy,
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
      multiply({.m = d.out, .n = d.in, .k = d.batch, .out = dweight.dtype, .accumulate = accumulate},
               gradient.transposed, cuda::fp8_matrix(x), dweight.data);
    }
    if (dx) {
      multiply({.m = d.batch, .n = d.in, .k = d.out, .out = dtype()}, gradient.values, cuda::fp8_matrix(weight),
               dx.data);
    }
  }

  void linear_gelu_backward_fp8(const LinearShape& d, const Tensor& weight, const Tensor& dy, const Tensor& pre,
                                const Tensor& dpre, const Tensor& dbias, bool accumulate) {
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

  cuda::MatmulPlans& matmul_;
  cuda::Tuner tuner_;
};

}  // namespace

std::unique_ptr<LinearOps> LinearOps::on_cuda(Device& device) { return std::make_unique<CudaLinear>(device); }

}  // namespace ddptrain
