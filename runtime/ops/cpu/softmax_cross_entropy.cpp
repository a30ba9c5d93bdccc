#include <cmath>

#include "runtime/core/error.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ddptrain {

void CpuDevice::softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale,
                                      const Tensor& dlogits, MetricSums* sums) {
  DDP_CHECK(logits.shape.size() == 2 && logits.dim(1) > 0, "softmax_cross_entropy: logits must have two dimensions");
  const std::int64_t classes = logits.dim(1);
  expect_tensor(logits, "softmax_cross_entropy: logits", dtype(), {batch.count, classes});
  if (dlogits) expect_tensor(dlogits, "softmax_cross_entropy: dlogits", dtype(), logits.shape);
  DDP_CHECK(batch.labels.dtype == DType::u8, "softmax_cross_entropy: labels must be u8");
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    RowArray<T> probabilities(classes);
    for (std::int64_t row = 0; row < batch.count; ++row) {
      const std::uint32_t sample = sample_index(batch.order, batch.step.value(), static_cast<std::uint32_t>(row));
      const std::uint8_t label = batch.labels.as<std::uint8_t>()[sample];
      DDP_CHECK(label < classes, "softmax_cross_entropy: label {} of sample {} is not below {}", label, sample,
                classes);
      const ConstRowView<T> values(logits.as<T>() + row * classes, classes);
      Eigen::Index best = 0;
      const T largest = values.maxCoeff(&best);
      const T label_value = values[label];
      probabilities = (values - largest).exp();
      const T total = probabilities.sum();
      sums->loss += static_cast<double>(std::log(total) + largest - label_value);
      sums->correct += best == label ? 1 : 0;
      if (!dlogits) continue;
      RowView<T> gradient(dlogits.as<T>() + row * classes, classes);
      gradient = probabilities * (static_cast<T>(gradient_scale) / total);
      gradient[label] -= static_cast<T>(gradient_scale);
    }
  });
  sums->samples += static_cast<std::uint64_t>(batch.count);
}

}  // namespace ddptrain
