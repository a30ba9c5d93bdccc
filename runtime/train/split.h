#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// One slice of a whole array, row-major. It has `run` consecutive elements from element `first` on, and as many from
/// every further multiple of `stride` after `first`.
struct Split {
  Shape whole;
  std::int64_t first = 0;
  std::int64_t run = 0;
  std::int64_t stride = 0;

  /// All of an array.
  static Split none(const Shape& shape) { return {shape, 0, element_count(shape), element_count(shape)}; }
  bool has_all() const { return run == element_count(whole); }

  /// Elements [begin, end) of the slice are some stretches of the whole array. Calls visit(at, in_whole, count) for
  /// each stretch. `at` and `in_whole` are the indices of its first element in the slice and in the whole array.
  template <class Visit>
  void visit(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    while (begin < end) {
      const std::int64_t count = std::min(end, (begin / run + 1) * run) - begin;
      visit(begin, first + begin / run * stride + begin % run, count);
      begin += count;
    }
  }
};

}  // namespace ddptrain
