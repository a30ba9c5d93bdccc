#pragma once

#include <algorithm>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// The elements of a whole array, row-major, that one of its parts has: `run` that follow each other from `first` on,
/// and as many behind every further `stride`.
struct Split {
  Shape whole;
  std::int64_t first = 0;
  std::int64_t run = 0;
  std::int64_t stride = 0;

  /// All of an array.
  static Split none(const Shape& shape) { return {shape, 0, element_count(shape), element_count(shape)}; }
  bool has_all() const { return run == element_count(whole); }

  /// Calls visit(at, in_whole, count) for the stretches that elements [begin, end) of the part are in the whole; `at`:
  /// of a stretch's first element, its place in the part.
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
