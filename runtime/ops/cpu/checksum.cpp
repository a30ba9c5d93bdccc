#include "runtime/ops/checksum.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/core/hash.h"
#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

Digest128 digest_of_piece(const char* data, std::size_t bytes) {
  char filled[kXxh3PieceBytes] = {};
  if (bytes < kXxh3PieceBytes) {
    std::memcpy(filled, data, bytes);
    data = filled;
  }
  const auto [high, low] = xxh3_128_value(data, kXxh3PieceBytes);
  return {low, high};
}

class CpuChecksum final : public ChecksumOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  std::uint64_t add_checksum(const Tensor& values, std::uint64_t first_piece, Digest128* sum) override {
    const std::size_t bytes = values.bytes();
    const auto pieces = static_cast<std::int64_t>((bytes + kXxh3PieceBytes - 1) / kXxh3PieceBytes);
    std::vector<Digest128> partial(static_cast<std::size_t>(threads()));
    parallel(pieces, [&](std::int64_t begin, std::int64_t end, int thread) {
      Digest128 mine;
      for (std::int64_t i = begin; i < end; ++i) {
        const std::size_t at = static_cast<std::size_t>(i) * kXxh3PieceBytes;
        const Digest128 piece = digest_of_piece(values.as<const char>() + at, std::min(kXxh3PieceBytes, bytes - at));
        const std::uint64_t place = first_piece + static_cast<std::uint64_t>(i);
        mine.low += at_piece(piece.low, place);
        mine.high += at_piece(piece.high, place);
      }
      partial[static_cast<std::size_t>(thread)] = mine;
    });
    for (const Digest128& part : partial) {
      sum->low += part.low;
      sum->high += part.high;
    }
    return first_piece + static_cast<std::uint64_t>(pieces);
  }
};

}  // namespace

std::unique_ptr<ChecksumOps> ChecksumOps::on_cpu(Device& device) { return std::make_unique<CpuChecksum>(device); }

}  // namespace ddptrain
