#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"

/// The values by which results of collectives are checked: small integers, so that their sums are exact in bf16 in any
/// order on up to 128 ranks.

namespace ddptrain::bench {

/// What rank `rank` puts in as its element `index`: -2 to 2.
DDP_HOST_DEVICE int pattern(int rank, std::uint64_t index) {
  const auto low = static_cast<std::uint32_t>(index);
  const auto high = static_cast<std::uint32_t>(index >> 32);
  return static_cast<int>(detail::mix(low ^ detail::mix(high ^ (static_cast<std::uint32_t>(rank) + 1) * 0x9E3779B9u)) %
                          5) -
         2;
}

/// What a rank must find in its result: element i is the sum over ranks, or, where `share` is not 0, comes from rank
/// i / share; `ranks` 1 with `first_rank` stands for that rank alone.
struct Expected {
  int first_rank = 0;
  int ranks = 1;            ///< How many are summed.
  std::uint64_t first = 0;  ///< Index of element 0 in what the ranks put in.
  std::uint64_t share = 0;

  DDP_HOST_DEVICE int value(std::uint64_t i) const {
    if (share != 0) return pattern(static_cast<int>(i / share), i % share);
    int sum = 0;
    for (int rank = first_rank; rank < first_rank + ranks; ++rank) sum += pattern(rank, first + i);
    return sum;
  }
};

/// Host memory; f32 or bf16.
void fill_pattern(const Tensor& values, int rank);
/// Elements of `values` that are not what they should be.
std::uint64_t count_wrong(const Tensor& values, const Expected& expected);

namespace gpu {
/// The same for the memory of the current device; returns when done. Error in a build without CUDA.
void fill_pattern(const Tensor& values, int rank);
std::uint64_t count_wrong(const Tensor& values, const Expected& expected);
}  // namespace gpu

}  // namespace ddptrain::bench
