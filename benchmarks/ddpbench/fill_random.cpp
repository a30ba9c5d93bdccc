#include "benchmarks/ddpbench/fill_random.h"

#include <algorithm>
#include <vector>

#include "runtime/core/random.h"

namespace ddptrain {

void fill_random(Device& device, const Tensor& values, double bound, std::uint32_t seed) {
  constexpr std::int64_t kPart = std::int64_t{1} << 22;
  const Buffer staging = device.allocate(DType::f32, {std::min(kPart, values.size())});
  std::vector<float> host(static_cast<std::size_t>(std::min(kPart, values.size())));
  for (std::size_t i = 0; i < host.size(); ++i) {
    const Philox random = philox<7>(static_cast<std::uint32_t>(i), 0, 0, 0, seed);
    host[i] = static_cast<float>(bound * (2.0 * uniform01(random.word[0]) - 1.0));
  }
  device.copy_to_device(staging.data(), host.data(), host.size() * sizeof(float));
  for (std::int64_t begin = 0; begin < values.size(); begin += kPart) {  // parts repeat
    const std::int64_t count = std::min(kPart, values.size() - begin);
    device.convert(staging.view(DType::f32, {count}), values.stretch(begin, count), device.compute_stream());
  }
  device.synchronize();
}

}  // namespace ddptrain
