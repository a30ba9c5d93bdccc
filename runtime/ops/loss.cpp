#include "runtime/ops/loss.h"

#include "runtime/device/timeline.h"
#include "runtime/ops/linear.h"

namespace ddptrain {

void LossOps::output_layer(Device& device, const OutputLayer& layer, MetricSums* sums) {
  auto& linear = device.get<LinearOps>();
  const auto span = [&device](const char* name) {
    return Span(device.timeline(), Lane::compute, device.compute_stream(), name);
  };
  {
    const Span logits = span("logits");
    linear.linear(layer.x, layer.weight, Tensor{}, layer.dlogits);
  }
  {
    const Span loss = span("cross-entropy");
    token_cross_entropy(layer.dlogits, layer.batch, layer.first_row, layer.vocabulary, layer.gradient_scale,
                        layer.dlogits, sums);
  }
  const Span gradient = span("d logits");
  linear.linear_backward(layer.x, layer.weight, layer.dlogits, layer.dx, Tensor{}, Tensor{}, false);
}

}  // namespace ddptrain
