#pragma once

#include "runtime/core/random.h"
#include "runtime/ops/family.h"

namespace ddptrain {

/// What element `i` of an array adds to the array's checksum, given its bits: a bijection of the bits for every i, so
/// that a checksum never misses one element that differs (the finaliser of SplitMix64).
DDP_HOST_DEVICE std::uint64_t checksum_of(std::uint64_t bits, std::uint64_t i) {
  std::uint64_t x = bits + i * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

/// Checksums of arrays that stay where they are.
class ChecksumOps : public Family<ChecksumOps> {
 public:
  /// *sum += checksum_of() every element of `values`, modulo 2^64: the same in any order. Elements of any type.
  virtual void add_checksum(const Tensor& values, std::uint64_t* sum) = 0;

  static std::unique_ptr<ChecksumOps> on_cpu(Device& device);
  static std::unique_ptr<ChecksumOps> on_cuda(Device& device);
};

}  // namespace ddptrain
