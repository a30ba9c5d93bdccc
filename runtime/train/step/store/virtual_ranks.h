#pragma once

#include <cstdint>

namespace ddptrain {

/// Which virtual ranks this rank computes. A job with V virtual ranks divides each global batch into V shares. Share
/// v has the samples that rank v of V real ranks would have. A rank computes its shares one after the other. The order
/// of samples, the gradients, norms, metrics and the evaluation depend on the shares only. So training gives the same
/// bits on any number of ranks that divides V, which is a power of two.
///
/// The gradients of two consecutive shares are added first, then two such sums, and so on. A rank that keeps whole
/// gradients has consecutive shares: it adds their gradients before the ranks add their sums. If the gradients of every
/// share are summed over the ranks in a separate pass (sharded gradients), consecutive shares are on consecutive ranks.
/// Both ways make the same additions.
struct VirtualRanks {
  std::int64_t all = 1;     ///< The number of virtual ranks of the job.
  std::int64_t first = 0;   ///< The first virtual rank of this rank.
  std::int64_t count = 1;   ///< The number of virtual ranks of this rank.
  std::int64_t stride = 1;  ///< Distance between consecutive virtual ranks of this rank.
  bool emulated = false;    ///< The job trains as if on `all` ranks. If not, every rank is itself.

  std::int64_t at(std::int64_t i) const { return first + i * stride; }  ///< This rank's `i`th.
};

}  // namespace ddptrain
