#include "benchmarks/ddpbench/doctor/device_rates.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "benchmarks/ddpbench/collectives/collective.h"
#include "benchmarks/ddpbench/fill_random.h"
#include "benchmarks/ddpbench/session.h"
#include "runtime/ops/linear.h"

namespace ddptrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

bool is_gpu(const Device& device) { return device.kind() == DeviceKind::cuda; }

}  // namespace

double product_flops(Device& device, std::int64_t edge, double seconds) {
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
  int passes = 0;
  for (; seconds_since(start) < seconds; ++passes) pass();
  return 8.0 * passes * 2.0 * static_cast<double>(edge * edge * edge) / seconds_since(start);
}

double copy_gb_per_s(Device& device, double seconds, const std::function<void()>& under_load) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  const Buffer from = device.allocate_pinned(kBytes);
  const Buffer to = device.allocate(kBytes);
  std::memset(from.data(), 1, kBytes);
  const auto pass = [&] {
    for (int i = 0; i < 4; ++i) device.copy(to.data(), from.data(), kBytes, device.compute_stream());
  };
  for (int i = 0; i < (is_gpu(device) ? 16 : 1); ++i) pass();
  under_load();
  device.synchronize();
  int passes = 0;
  const auto start = Clock::now();
  for (; seconds_since(start) < seconds; ++passes) {
    pass();
    device.synchronize();
  }
  return 4.0 * passes * kBytes * (is_gpu(device) ? 1.0 : 2.0) / seconds_since(start) / 1e9;
}

double all_reduce_gb_per_s(const World& world, Device& device, double seconds) {
  constexpr std::size_t kSmallest = std::size_t{64} << 10;
  constexpr double kLongEnough = 0.01;  // seconds
  const std::size_t largest = std::size_t{is_gpu(device) ? 256U : 4U} << 20;
  const auto communicator = make_communicator(world, device, {.symmetric = false});
  const Buffer buffer = communicator->allocate(largest);
  const auto seconds_of_one = [&](std::size_t bytes, int times) {
    const Tensor values{buffer.data(), DType::f32, {static_cast<std::int64_t>(bytes / sizeof(float))}};
    return world.max(seconds_of(world, device, [&] {
      for (int i = 0; i < times; ++i) {
        communicator->wait(communicator->all_reduce_sum(values, device.compute_stream()));
      }
    })) / times;
  };
  seconds_of_one(kSmallest, 1);  // makes connections
  std::size_t bytes = kSmallest;
  double once = seconds_of_one(bytes, 1);
  while (once < kLongEnough && bytes < largest) {
    bytes *= 2;
    once = seconds_of_one(bytes, 1);
  }
  const int times = std::clamp(static_cast<int>(seconds / once), 1, 10'000);
  return bandwidth(Collective::all_reduce, bytes, seconds_of_one(bytes, times), world.size()).busbw;
}

}  // namespace ddptrain::bench
