#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"

/// Values with which the benchmarks check the results of collectives: small integers, whose sums over up to 128 ranks
/// are exact in bf16 in any order.

namespace ddptrain::bench {

/// Element `index` of the input of rank `rank`: -2 to 2.
DDP_HOST_DEVICE int pattern(int rank, std::uint64_t index) {
  const auto low = static_cast<std::uint32_t>(index);
  const auto high = static_cast<std::uint32_t>(index >> 32);
  return static_cast<int>(detail::mix(low ^ detail::mix(high ^ (static_cast<std::uint32_t>(rank) + 1) * 0x9E3779B9u)) %
                          5) -
         2;
}

/// The expected result of a rank: element i is the sum over the ranks, or comes from rank i / share if `share` is not
/// 0, which sent its elements from `first` on. `ranks` = 1 with `first_rank` means that rank alone.
struct Expected {
  int first_rank = 0;
  int ranks = 1;            ///< Number of ranks in the sum.
  std::uint64_t first = 0;  ///< Index of element 0 in the inputs.
  std::uint64_t share = 0;

  DDP_HOST_DEVICE int value(std::uint64_t i) const {
    if (share != 0) return pattern(static_cast<int>(i / share), first + i % share);
    int sum = 0;
    for (int rank = first_rank; rank < first_rank + ranks; ++rank) sum += pattern(rank, first + i);
    return sum;
  }
};

/// In host memory; f32 or bf16.
void fill_pattern(const Tensor& values, int rank);
/// Number of elements of `values` that are wrong.
std::uint64_t count_wrong(const Tensor& values, const Expected& expected);

namespace gpu {
/// The same in the memory of the current device; waits. Error in a build without CUDA.
void fill_pattern(const Tensor& values, int rank);
std::uint64_t count_wrong(const Tensor& values, const Expected& expected);
}  // namespace gpu

}  // namespace ddptrain::bench
