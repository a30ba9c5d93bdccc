#include "runtime/diagnostics/nccl_nodes.h"

#include <algorithm>
#include <set>

namespace ddptrain {

namespace {

using Nodes = std::vector<std::vector<int>>;

/// Of blocks of ranks that count 0, 1, ... up to their number of local ranks; empty where they do not.
Nodes by_local_ranks(const std::map<int, NcclPlace>& places, int ranks) {
  if (static_cast<int>(places.size()) != ranks) return {};
  Nodes nodes;
  for (const auto& [rank, place] : places) {
    if (place.local_rank == 0) nodes.emplace_back();
    if (nodes.empty() || static_cast<int>(nodes.back().size()) != place.local_rank) return {};
    nodes.back().push_back(rank);
  }
  for (const std::vector<int>& node : nodes) {
    if (static_cast<int>(node.size()) != places.at(node.front()).local_ranks) return {};
  }
  return nodes;
}

bool stays_in_node(const std::string& via) {
  return via.starts_with("SHM") || (via.starts_with("P2P/") && !via.starts_with("P2P/MNNVL"));
}

/// Ranks that transports within a node join; empty where there are no transports.
Nodes by_transports(const std::vector<NcclTransport>& transports, int ranks) {
  if (transports.empty()) return {};
  std::vector<int> first(static_cast<std::size_t>(ranks));  // of the node, as far as it is known
  for (int rank = 0; rank < ranks; ++rank) first[static_cast<std::size_t>(rank)] = rank;
  for (const NcclTransport& transport : transports) {
    if (!transport.from || !transport.to || !stays_in_node(transport.via)) continue;
    if (std::max(*transport.from, *transport.to) >= ranks) return {};
    const int a = first[static_cast<std::size_t>(*transport.from)];
    const int b = first[static_cast<std::size_t>(*transport.to)];
    if (a != b) std::replace(first.begin(), first.end(), std::max(a, b), std::min(a, b));
  }
  std::map<int, std::vector<int>> joined;
  for (int rank = 0; rank < ranks; ++rank) joined[first[static_cast<std::size_t>(rank)]].push_back(rank);
  Nodes nodes;
  for (auto& [rank, node] : joined) nodes.push_back(std::move(node));
  return nodes;
}

}  // namespace

std::vector<NcclNode> ranks_by_node(const std::map<int, NcclPlace>& places,
                                    const std::vector<NcclTransport>& transports, int ranks, int nodes) {
  constexpr int kMostRanks = 4096;  // that are worth the search by transports
  Nodes found = by_local_ranks(places, ranks);
  if (found.empty() && ranks <= kMostRanks) found = by_transports(transports, ranks);
  if (found.empty() || (nodes > 0 && static_cast<int>(found.size()) != nodes)) return {};
  std::set<std::string> hosts;
  std::vector<NcclNode> named;
  for (const std::vector<int>& node : found) {
    const auto place = places.find(node.front());
    named.push_back({place == places.end() ? "" : place->second.host, node});
    hosts.insert(named.back().host);
  }
  if (hosts.size() < named.size()) {  // NCCL_HOSTID makes nodes of one host
    for (NcclNode& node : named) node.host.clear();
  }
  return named;
}

}  // namespace ddptrain
