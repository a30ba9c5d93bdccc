#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/diagnostics/nccl_log_parser.h"

namespace ddptrain {

/// What a rank says of its place: comm ... rank 5 ... localRanks 4 localRank 1.
struct NcclPlace {
  int local_rank = 0;
  int local_ranks = 0;
  std::string host;  ///< That its line begins with; empty without.
};

/// The ranks of each node, by what the ranks say of themselves where all have said it and their numbers go up node by
/// node, else by the transports: P2P and SHM join ranks of one node. Empty where neither gives `nodes` nodes (0: any
/// number) of all `ranks`.
std::vector<NcclNode> ranks_by_node(const std::map<int, NcclPlace>& places,
                                    const std::vector<NcclTransport>& transports, int ranks, int nodes);

}  // namespace ddptrain
