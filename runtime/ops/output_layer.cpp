#include "runtime/ops/output_layer.h"

#include "runtime/device/device.h"
#include "runtime/device/timeline.h"

namespace ddptrain {

namespace {

Span span(Device& device, const char* name) {
  return {device.timeline(), Lane::compute, device.compute_stream(), name};
}

}  // namespace

OutputLayerOps::OutputLayerOps(Device& device)
    : owner_(device), linear_(device.get<LinearOps>()), loss_(device.get<LossOps>()) {}

void OutputLayerOps::loss(const OutputRows& rows, float gradient_scale, const Tensor& d_x, MetricSums* sums) {
  multiply(rows);
  const Tensor d_logits = gradient_scale != 0.0f ? rows.logits : Tensor{};
  {
    const Span span = ddptrain::span(owner_, "cross-entropy");
    loss_.token_cross_entropy(rows.logits, rows.batch, rows.first_row, rows.vocabulary, gradient_scale, d_logits, sums);
  }
  if (d_logits) input_gradient(rows, d_x);
}

void OutputLayerOps::partial_loss(const OutputRows& rows, const Tensor& statistics) {
  multiply(rows);
  const Span span = ddptrain::span(owner_, "softmax statistics");
  loss_.partial_cross_entropy(rows.logits, rows.batch, rows.first_row, rows.vocabulary, statistics);
}

void OutputLayerOps::combined_loss(const OutputRows& rows, const Tensor& statistics, float gradient_scale,
                                   const Tensor& d_x, MetricSums* sums) {
  const Tensor d_logits = gradient_scale != 0.0f ? rows.logits : Tensor{};
  {
    const Span span = ddptrain::span(owner_, "cross-entropy");
    loss_.combined_cross_entropy(rows.logits, rows.batch, rows.first_row, rows.vocabulary, statistics, gradient_scale,
                                 d_logits, sums);
  }
  if (d_logits) input_gradient(rows, d_x);
}

void OutputLayerOps::multiply(const OutputRows& rows) {
  const Span span = ddptrain::span(owner_, "logits");
  linear_.linear(rows.x, rows.weight, Tensor{}, rows.logits);
}

void OutputLayerOps::input_gradient(const OutputRows& rows, const Tensor& d_x) {
  const Span span = ddptrain::span(owner_, "d logits");
  linear_.linear_backward(Tensor{}, rows.weight, rows.logits, d_x, Tensor{}, Tensor{}, false);
}

}  // namespace ddptrain
