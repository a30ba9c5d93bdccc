#pragma once

#include <string>
#include <vector>

#include "runtime/comm/link_probe.h"

namespace ddptrain::bench {

/// What a host did in the measurement.
struct HostRates {
  std::string name;
  int rank = 0;  ///< That measured.
  double processor_gflops = 0.0;
  double memory_gb_per_s = 0.0;
  std::vector<std::string> notes;  ///< What may explain a low rate: "load 12 on 8 processors".
};

/// Lines that name slow hosts and links, by how much, and what is different there; a single line if none is slower than
/// `tolerance` (such as 0.5) times the median.
std::vector<std::string> diagnosis(const std::vector<HostRates>& hosts, const std::vector<LinkRate>& links,
                                   double tolerance);

}  // namespace ddptrain::bench
