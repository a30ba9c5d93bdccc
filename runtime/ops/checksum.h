#pragma once

#include "runtime/core/xxh3_piece.h"
#include "runtime/ops/family.h"

namespace ddptrain {

/// What half a digest of piece `i` adds to the checksum: a bijection for every i (the finaliser of SplitMix64), so that
/// pieces that change places change the sum.
DDP_HOST_DEVICE std::uint64_t at_piece(std::uint64_t half, std::uint64_t i) {
  std::uint64_t x = half + i * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Checksums of 128 bits of arrays that stay where they are: the XXH3-128 of every KiB (the last one filled up with
/// zeros), each half through at_piece(), added up modulo 2^64 in each half: the same in any order.
class ChecksumOps : public Family<ChecksumOps> {
 public:
  /// Adds the pieces of `values`, elements of any type, as pieces `first_piece` and on; returns the number after the
  /// last.
  virtual std::uint64_t add_checksum(const Tensor& values, std::uint64_t first_piece, Digest128* sum) = 0;

  static std::unique_ptr<ChecksumOps> on_cpu(Device& device);
  static std::unique_ptr<ChecksumOps> on_cuda(Device& device);
};

}  // namespace ddptrain
