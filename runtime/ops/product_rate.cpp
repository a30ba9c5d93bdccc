#include "runtime/ops/product_rate.h"

#include <chrono>

#include "runtime/device/fill_random.h"
#include "runtime/ops/linear.h"

namespace ddptrain {

double product_flops(Device& device, std::int64_t edge, double seconds) {
  using Clock = std::chrono::steady_clock;
  const Shape shape = {edge, edge};
  const DType dtype = device.dtype();
  const Buffer x = device.allocate(dtype, shape), w = device.allocate(dtype, shape), y = device.allocate(dtype, shape);
  fill_random(device, x.view(dtype, shape), 1.0, 1);
  fill_random(device, w.view(dtype, shape), 0.1, 2);
  LinearOps& ops = device.get<LinearOps>();
  const auto pass = [&] {
    for (int i = 0; i < 8; ++i) ops.linear(x.view(dtype, shape), w.view(dtype, shape), {}, y.view(dtype, shape));
    device.synchronize();
  };
  pass();
  const auto start = Clock::now();
  const auto passed = [start] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  int passes = 0;
  for (; passed() < seconds; ++passes) pass();
  return 8.0 * passes * 2.0 * static_cast<double>(edge * edge * edge) / passed();
}

}  // namespace ddptrain
