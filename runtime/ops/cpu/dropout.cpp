#include "runtime/core/error.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

void CpuDevice::dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) {
  DDP_CHECK(!x.shape.empty() && x.dim(0) > 0, "dropout: x has no rows");
  expect_tensor(x, "dropout: x", dtype(), x.shape);
  expect_tensor(y, "dropout: y", dtype(), x.shape);
  const std::int64_t features = x.size() / x.dim(0);
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    T* memory = scratch<T>(features);
    parallel_each(x.dim(0), 16, [&](std::int64_t row, int thread) {
      RowView<T> factors(memory + thread * features, features);
      dropout_factors(dropout, static_cast<std::uint32_t>(row), features, factors.data());
      RowView<T>(y.as<T>() + row * features, features) =
          ConstRowView<T>(x.as<T>() + row * features, features) * factors;
    });
  });
}

}  // namespace ddptrain
