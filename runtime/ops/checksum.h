#pragma once

#include <cstdint>

#include "runtime/core/random.h"
#include "runtime/ops/family.h"

namespace ddptrain {

/// Contribution of word `i` of an array to its checksum: a bijection for every i (the finaliser of SplitMix64), so that
/// a word that changes, or words that change places, change the sum.
DDP_HOST_DEVICE std::uint64_t at_place(std::uint64_t word, std::uint64_t i) {
  std::uint64_t x = word + i * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Checksums of arrays that stay in device memory: at_place() of every 8 bytes; the last ones are filled up
/// with zeros, added modulo 2^64. The sum is the same in any order.
class ChecksumOps : public Family<ChecksumOps> {
 public:
  /// Adds the checksum of `values`, whose elements may have any type, to `sum` in device memory.
  virtual void add_checksum(const Tensor& values, std::uint64_t* sum) = 0;

  static std::unique_ptr<ChecksumOps> on_cpu(Device& device);
  static std::unique_ptr<ChecksumOps> on_cuda(Device& device);
};

}  // namespace ddptrain
