#pragma once

#include <string>
#include <vector>

namespace ddptrain {

/// How the ranks of a job reach each other, as one short label: "none" for one rank, "NET" between nodes, "host" on the
/// CPU, else the slowest link between any two of this node's GPUs: NV#, PIX, PXB, PHB, NODE or SYS, or "unknown" where
/// the machine hides it. `gpus`: PCI bus ids of the GPUs of this node's ranks; empty on the CPU.
std::string topology_label(int ranks, int nodes, const std::vector<std::string>& gpus);

}  // namespace ddptrain
