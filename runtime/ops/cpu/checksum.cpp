#include "runtime/ops/checksum.h"

#include <numeric>
#include <vector>

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

class CpuChecksum final : public ChecksumOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void add_checksum(const Tensor& values, std::uint64_t* sum) override {
    switch (size_of(values.dtype)) {
      case 1:
        return add(values.as<const std::uint8_t>(), values.size(), sum);
      case 2:
        return add(values.as<const std::uint16_t>(), values.size(), sum);
      case 4:
        return add(values.as<const std::uint32_t>(), values.size(), sum);
      default:
        return add(values.as<const std::uint64_t>(), values.size(), sum);
    }
  }

 private:
  template <class Bits>
  void add(const Bits* values, std::int64_t count, std::uint64_t* sum) {
    std::vector<std::uint64_t> partial(static_cast<std::size_t>(threads()), 0);
    parallel(count, [&](std::int64_t begin, std::int64_t end, int thread) {
      std::uint64_t mine = 0;
      for (std::int64_t i = begin; i < end; ++i) mine += checksum_of(values[i], static_cast<std::uint64_t>(i));
      partial[static_cast<std::size_t>(thread)] = mine;
    });
    *sum = std::accumulate(partial.begin(), partial.end(), *sum);
  }
};

}  // namespace

std::unique_ptr<ChecksumOps> ChecksumOps::on_cpu(Device& device) { return std::make_unique<CpuChecksum>(device); }

}  // namespace ddptrain
