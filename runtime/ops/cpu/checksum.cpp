#include "runtime/ops/checksum.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

class CpuChecksum final : public ChecksumOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void add_checksum(const Tensor& values, std::uint64_t* sum) override {
    const std::size_t bytes = values.bytes();
    std::vector<std::uint64_t> partial(static_cast<std::size_t>(threads()));
    parallel(static_cast<std::int64_t>((bytes + 7) / 8), [&](std::int64_t begin, std::int64_t end, int thread) {
      std::uint64_t mine = 0;
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
        std::uint64_t word = 0;
        std::memcpy(&word, values.as<const char>() + 8 * i, std::min<std::size_t>(8, bytes - 8 * i));
        mine += at_place(word, i);
      }
      partial[static_cast<std::size_t>(thread)] = mine;
    });
    *sum = std::accumulate(partial.begin(), partial.end(), *sum);
  }
};

}  // namespace

std::unique_ptr<ChecksumOps> ChecksumOps::on_cpu(Device& device) { return std::make_unique<CpuChecksum>(device); }

}  // namespace ddptrain
