#pragma once

#include <cstdint>

namespace ddptrain {

/// The global batch in as many parts as there are virtual ranks. Part v of a step is what rank v of so many ranks would
/// take, over all micro-steps; a rank computes its parts one after the other. Order of samples, gradients, norms,
/// metrics and evaluation follow from the parts, so that training gives the same bits on any number of ranks.
///
/// Parts are added in pairs, these sums in pairs, and so on. A rank that keeps whole gradients has neighbouring parts,
/// which it adds before the ranks add theirs. Where each part is summed over the ranks at once, neighbouring parts are
/// on neighbouring ranks: the same additions.
struct VirtualRanks {
  std::int64_t all = 1;
  std::int64_t first = 0;   ///< Of this rank,
  std::int64_t count = 1;   ///< how many it has,
  std::int64_t stride = 1;  ///< and from each to the next.

  std::int64_t at(std::int64_t i) const { return first + i * stride; }  ///< This rank's `i`th.
};

}  // namespace ddptrain
