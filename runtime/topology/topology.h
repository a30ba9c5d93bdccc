#pragma once

#include <string>
#include <vector>

namespace ddptrain {

/// A short label for the connection between the ranks of a job: "none" for one rank, "NET" between nodes, "host" on the
/// CPU; otherwise the farthest link between two GPUs of this node: NV#, PIX, PXB, PHB, NODE, SYS, or "unknown" if the
/// machine hides it. `gpus`: PCI bus ids of the GPUs of this node's ranks; empty on the CPU.
std::string topology_label(int ranks, int nodes, const std::vector<std::string>& gpus);

}  // namespace ddptrain
