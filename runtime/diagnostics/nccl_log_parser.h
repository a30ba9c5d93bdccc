#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace ddptrain {

constexpr const char* kNcclValueSeparator = " | ";
/// In the place of AllReduce and the like, where NCCL does not say which.
constexpr const char* kNcclUnnamedCollective = "Collective";

/// A rank's place in the tree of a channel.
struct NcclTreeNode {
  int rank = 0;
  int parent = -1;  ///< -1: it is the root.
  std::vector<int> children;
};

/// One direction between two ranks on one channel. For CollNet one end is the network: nothing.
struct NcclTransport {
  std::optional<int> from;
  std::optional<int> to;
  int channel = 0;
  std::string via;  ///< As NCCL writes it: P2P/CUMEM/read, P2P/IPC, SHM/direct/direct, NET/IB/0/GDRDMA ...

  auto operator<=>(const NcclTransport&) const = default;
};

/// What a collective of one size ran with.
struct NcclChoice {
  std::string algorithm;  ///< Ring, Tree, NVLS ..., or Symmetric.
  std::string protocol;   ///< LL, LL128, Simple; for Symmetric the kernel, such as RSxLD_AGxST.
  int channels = 0;       ///< 0: the log does not tell.
};

/// A pattern that NCCL searched for in the machine, with the rates that it counts on.
struct NcclGraph {
  std::string pattern;  ///< Ring, Tree, NVLS ...
  int channels = 0;
  double intra_gb_per_s = 0.0;  ///< Per channel, within a node.
  double inter_gb_per_s = 0.0;  ///< Per channel, between nodes.
  std::string intra_type;       ///< The farthest link within a node: NVL, PIX, PXB, PHB, SYS ...
  std::string inter_type;       ///< The same between GPU and NIC.

  auto operator<=>(const NcclGraph&) const = default;
};

/// Ranks of one node.
struct NcclNode {
  std::string host;  ///< Empty where the lines do not begin with it, or several nodes have the same.
  std::vector<int> ranks;
};

/// What NCCL may choose for a collective, by its matrix of functions, protocols and algorithms.
struct NcclEnabled {
  std::vector<std::string> algorithms;
  std::vector<std::string> protocols;
};

/// What stands between nodes.
struct NcclNetwork {
  std::string name;                    ///< IB, Socket, AWS Libfabric ...; empty: the log does not tell.
  std::vector<std::string> adapters;   ///< As NCCL lists them: [0]mlx5_0:1/IB ...
  std::set<std::string> gdr_enabled;   ///< For what GPUDirect RDMA is possible: "GPU 0 / HCA 0", "HCA 0 'mlx5_0'".
  std::set<std::string> gdr_disabled;  ///< For what it is not.
  bool pxn_disabled = false;           ///< NCCL says so.
};

/// What one communicator's ranks wrote with NCCL_DEBUG=INFO. Where ranks or several communicators contradict each
/// other, the first word counts; see `contradictions`.
struct NcclLog {
  std::string version = "unknown";  ///< Such as 2.28.9.
  int ranks = 0;                    ///< 0: the log does not tell.
  bool ranks_told = false;          ///< False: counted from the ranks that rings, trees and transports name.
  int nodes = 0;                    ///< 0: the log does not tell.
  int channels = 0;                 ///< For collectives; 0: the log does not tell.
  std::optional<int> nvls_channels;
  bool has_nvswitch = false;              ///< NCCL found NVSwitches.
  std::map<int, std::vector<int>> rings;  ///< By channel, from rank 0 on or as logged; only complete ones.
  std::map<int, std::map<int, NcclTreeNode>>
      trees;                              ///< By channel and rank; ranks whose lines are missing are missing.
  std::vector<NcclTransport> transports;  ///< Sorted, each once.
  std::map<std::pair<std::string, std::int64_t>, NcclChoice>
      choices;                          ///< By collective and bytes; the last one of each.
  std::vector<NcclGraph> graphs;        ///< In the log's order, each once.
  std::vector<NcclNode> ranks_by_node;  ///< In the order of their first ranks; empty where the log does not tell.
  std::map<std::string, NcclEnabled> enabled;  ///< By collective; empty: NCCL prints it where a variable restricts it.
  NcclNetwork network;
  std::map<std::string, std::string>
      environment;  ///< What NCCL says was set by environment; ranks' different values joined by kNcclValueSeparator.

  std::int64_t contradictions = 0;  ///< Lines that say otherwise than an earlier one.
  std::int64_t unreadable_lines =
      0;  ///< About the above, but cut, damaged or of an unknown form; what came before may be kept.
  std::vector<std::string> unreadable_examples;  ///< The first few of them, shortened, with their line numbers.
};

/// Reads a log of NCCL 2.8 to 2.32, of one rank or of several mixed with each other and with a program's own output.
/// Never throws for what the text holds.
NcclLog read_nccl_log(std::istream& text);

/// Whether nothing of NCCL's was found.
bool says_nothing(const NcclLog& log);

}  // namespace ddptrain
