#include "benchmarks/gpt_ops/output_layer_rows.h"

#include <fmt/format.h>

#include "runtime/ops/cuda/output_layer/output_products.h"

namespace ddptrain {

namespace {

constexpr float kGradientScale = 1e-5f;

/// The second and later runs of a kernel that turns logits into gradients read gradients as logits: for a time that
/// makes no difference.
void time_kernels(CudaDevice& device, const OutputRows& rows, const Tensor& d_x, MetricSums* sums,
                  const TimeOperation& time) {
  using cuda::FinishingWarps;
  const int all = device.multiprocessors();
  const Buffer memory = device.allocate(cuda::OutputWorkspace(rows, all, nullptr).bytes());
  const cuda::OutputWorkspace workspace(rows, all, memory.data());
  const cuda::OutputProducts products(rows, workspace, all, device.stream());
  const double bytes = static_cast<double>(rows.logits.bytes());
  const double flops = 2.0 * static_cast<double>(rows.logits.size());  // of a column of the width
  const auto width = static_cast<double>(rows.x.dim(1));
  for (const FinishingWarps warps : {FinishingWarps::three, FinishingWarps::seven}) {
    time(fmt::format("logits and statistics, {} warps", static_cast<int>(warps)), bytes, flops * width,
         [&] { products.logits(warps, device.compute_pairs()); });
  }
  time("losses of rows", 0, 0, [&] { products.loss(kGradientScale, sums); });
  time("gradients of logits and of x", 2 * bytes, flops * std::min(width, double{cuda::kGradientColumns}),
       [&] { products.input_gradient(d_x); });
}

}  // namespace

void time_output_layer(CudaDevice& device, const OutputRows& rows, const Tensor& d_x, MetricSums* sums,
                       const TimeOperation& time) {
  const double bytes = 3.0 * static_cast<double>(rows.logits.bytes());
  const double flops = 4.0 * static_cast<double>(rows.logits.size() * rows.x.dim(1));
  const std::string size = fmt::format(", {} rows", rows.x.dim(0));
  OutputLayerOps separate(device);
  time("output layer, separate" + size, bytes, flops, [&] { separate.loss(rows, kGradientScale, d_x, sums); });
  time("output layer, as chosen" + size, bytes, flops,
       [&] { device.get<OutputLayerOps>().loss(rows, kGradientScale, d_x, sums); });
  if (cuda::suits_output_products(rows, d_x)) time_kernels(device, rows, d_x, sums, time);
}

}  // namespace ddptrain
