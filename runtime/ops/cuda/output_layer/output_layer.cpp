#include "runtime/ops/output_layer.h"

#include <string>
#include <vector>

#include "runtime/device/timeline.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/matmul.h"
#include "runtime/ops/cuda/gemm/tuner.h"
#include "runtime/ops/cuda/output_layer/output_products.h"

namespace ddptrain {

namespace {

using cuda::FinishingWarps;

/// `--tune on` chooses between one operation after another and products that also compute the softmax.
class CudaOutputLayer final : public OutputLayerOps, CudaOps {
 public:
  explicit CudaOutputLayer(Device& device)
      : OutputLayerOps(device), CudaOps(device), matmul_(device.get<cuda::MatmulPlans>()), tuner_(device) {}

  void loss(const OutputRows& rows, float gradient_scale, const Tensor& d_x, MetricSums* sums) override {
    check(rows, {});
    MetricSums* to = sums;
    const auto separate = [&] {
      OutputLayerOps::loss(rows, gradient_scale, d_x, to);
      return true;
    };
    const auto fused = [&](FinishingWarps warps) {
      return [&, warps] { return try_loss(rows, gradient_scale, d_x, to, warps); };
    };
    const std::vector<cuda::Tuner::Way> ways = {{"separate", separate},
                                                {"softmax in the products", fused(FinishingWarps::three)},
                                                {"softmax in the products, seven warps", fused(FinishingWarps::seven)}};
    const std::string operation = gradient_scale != 0.0f ? "output layer and its gradients" : "output layer";
    if (tuner_.is_new(operation, gemm(rows), ways)) {
      const Buffer trial = device_.allocate(sizeof(MetricSums));  // timing adds to the sums again and again
      to = static_cast<MetricSums*>(trial.data());
      tuner_.run(operation, gemm(rows), ways);
      device_.synchronize();
      to = sums;
    }
    tuner_.run(operation, gemm(rows), ways);
  }

  void partial_loss(const OutputRows& rows, const Tensor& statistics) override {
    check(rows, statistics);
    const auto separate = [&] {
      OutputLayerOps::partial_loss(rows, statistics);
      return true;
    };
    const auto fused = [&](FinishingWarps warps) {
      return [&, warps] { return try_partial_loss(rows, statistics, warps); };
    };
    tuner_.run("logits and softmax statistics", gemm(rows),
               {{"separate", separate},
                {"statistics in the product", fused(FinishingWarps::three)},
                {"statistics in the product, seven warps", fused(FinishingWarps::seven)}});
  }

  void combined_loss(const OutputRows& rows, const Tensor& statistics, float gradient_scale, const Tensor& d_x,
                     MetricSums* sums) override {
    check(rows, statistics);
    MetricSums* to = sums;
    const auto separate = [&] {
      OutputLayerOps::combined_loss(rows, statistics, gradient_scale, d_x, to);
      return true;
    };
    const auto fused = [&] { return try_combined_loss(rows, statistics, gradient_scale, d_x, to); };
    const std::vector<cuda::Tuner::Way> ways = {{"separate", separate}, {"gradients in the product", fused}};
    const std::string operation = gradient_scale != 0.0f ? "loss and gradients of slices" : "loss of slices";
    if (tuner_.is_new(operation, gemm(rows), ways)) {
      const Buffer trial = device_.allocate(sizeof(MetricSums));
      const Buffer of_trial = device_.allocate(DType::f32, {rows.x.dim(0), LossOps::kSoftmaxStatistics});
      to = static_cast<MetricSums*>(trial.data());
      tuner_.run(operation, gemm(rows), ways);
      partial_loss(rows, of_trial.view(DType::f32, {rows.x.dim(0), LossOps::kSoftmaxStatistics}));  // the logits again
      device_.synchronize();
      to = sums;
    }
    tuner_.run(operation, gemm(rows), ways);
  }

 private:
  Span span(const char* name) const { return {device_.timeline(), Lane::compute, device_.compute_stream(), name}; }

  void check(const OutputRows& rows, const Tensor& statistics) const {
    check_linear(rows.x, rows.weight, {}, rows.logits, dtype());
    check_predictions("output layer", rows.logits, rows.batch, rows.first_row, rows.vocabulary, statistics, {},
                      dtype());
  }
  cuda::Gemm gemm(const OutputRows& rows) const {
    return {rows.x.dim(0), rows.weight.dim(0), rows.x.dim(1), false, true, dtype(), dtype(), false};
  }
  cuda::OutputWorkspace workspace(const OutputRows& rows) const {
    const int all = device_.multiprocessors();
    const std::size_t bytes = cuda::OutputWorkspace(rows, all, nullptr).bytes();
    return {rows, all, scratch().reserve(bytes, stream())};
  }
  cuda::OutputProducts products(const OutputRows& rows, const cuda::OutputWorkspace& workspace) const {
    return {rows, workspace, device_.multiprocessors(), stream()};
  }
  bool can_multiply(const OutputRows& rows, const Tensor& d_x = {}) const {
    return device_.compute_pairs() > 0 && cuda::suits_output_products(rows, d_x);
  }
  /// False, and nothing is queued, if GPU or tensors do not suit. The same for the next two.
  bool try_loss(const OutputRows& rows, float gradient_scale, const Tensor& d_x, MetricSums* sums,
                FinishingWarps warps) {
    if (!can_multiply(rows, d_x) || gradient_scale < 0.0f) return false;
    const cuda::OutputWorkspace workspace = this->workspace(rows);
    const cuda::OutputProducts products = this->products(rows, workspace);
    {
      const Span span = this->span("logits");
      products.logits(warps, device_.compute_pairs());
    }
    {
      const Span span = this->span("cross-entropy");
      products.loss(gradient_scale, sums);
    }
    if (gradient_scale != 0.0f) input_gradient(products, rows, d_x);
    return true;
  }
  bool try_partial_loss(const OutputRows& rows, const Tensor& statistics, FinishingWarps warps) {
    if (!can_multiply(rows)) return false;
    const cuda::OutputWorkspace workspace = this->workspace(rows);
    const cuda::OutputProducts products = this->products(rows, workspace);
    {
      const Span span = this->span("logits");
      products.logits(warps, device_.compute_pairs());
    }
    const Span span = this->span("softmax statistics");
    products.statistics(statistics);
    return true;
  }
  bool try_combined_loss(const OutputRows& rows, const Tensor& statistics, float gradient_scale, const Tensor& d_x,
                         MetricSums* sums) {
    if (!can_multiply(rows, d_x) || gradient_scale < 0.0f) return false;
    const cuda::OutputWorkspace workspace = this->workspace(rows);
    const cuda::OutputProducts products = this->products(rows, workspace);
    {
      const Span span = this->span("cross-entropy");
      products.loss(statistics, gradient_scale, sums);
    }
    if (gradient_scale != 0.0f) input_gradient(products, rows, d_x);
    return true;
  }

  /// The kernel computes the first columns. It leaves the gradients of the logits for the others.
  void input_gradient(const cuda::OutputProducts& products, const OutputRows& rows, const Tensor& d_x) {
    const Span span = this->span("d logits");
    products.input_gradient(d_x);
    const std::int64_t width = rows.x.dim(1), done = cuda::kGradientColumns;
    if (width <= done) return;
    const cuda::Gemm others{.m = rows.x.dim(0),
                            .n = width - done,
                            .k = rows.weight.dim(0),
                            .in = dtype(),
                            .out = dtype(),
                            .pitch_b = width,
                            .pitch_c = width};
    const std::size_t skipped = static_cast<std::size_t>(done) * size_of(dtype());
    matmul_.gemm(others,
                 {.a = rows.logits.data,
                  .b = static_cast<const char*>(rows.weight.data) + skipped,
                  .c = static_cast<char*>(d_x.data) + skipped},
                 stream());
  }

  cuda::MatmulPlans& matmul_;
  cuda::Tuner tuner_;
};

}  // namespace

std::unique_ptr<OutputLayerOps> OutputLayerOps::on_cuda(Device& device) {
  return std::make_unique<CudaOutputLayer>(device);
}

}  // namespace ddptrain
