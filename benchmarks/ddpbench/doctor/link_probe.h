#pragma once

#include <vector>

#include "runtime/comm/world.h"

namespace ddptrain::bench {

/// Messages from one rank to another over MPI, from host memory.
struct LinkRate {
  int from = 0;
  int to = 0;
  double gb_per_s = 0.0;    ///< One way.
  double latency_us = 0.0;  ///< Half of a round trip of 8 bytes.
};

/// Measures both ways between neighbours in a ring of `ranks` (of the world), two ranks at a time for each, for about
/// `seconds` in all. The same list on every rank; empty for fewer than two ranks. Collective.
std::vector<LinkRate> probe_ring(const World& world, const std::vector<int>& ranks, double seconds);

}  // namespace ddptrain::bench
