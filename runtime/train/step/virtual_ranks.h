#pragma once

#include <cstdint>

namespace ddptrain {

/// The global batch in as many parts as there are virtual ranks. Part v of a step is what rank v of so many ranks would
/// take, over all micro-steps; a rank computes neighbouring parts one after the other. Order of samples, gradients,
/// norms, metrics and evaluation follow from the parts, so that training gives the same bits on any number of ranks.
struct VirtualRanks {
  std::int64_t all = 1;
  std::int64_t first = 0;  ///< Of this rank,
  std::int64_t count = 1;  ///< and how many it has.
};

}  // namespace ddptrain
