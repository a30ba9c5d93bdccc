#include "runtime/diagnostics/nccl_log_parser.h"

#include <gtest/gtest.h>

#include <spdlog/fmt/fmt.h>

#include <numeric>
#include <random>

#include "runtime/diagnostics/nccl_log.h"
#include "tests/diagnostics/recorded_log.h"

namespace ddptrain {
namespace {

using Ring = std::vector<int>;

/// Two nodes of two ranks each, as NCCL 2.28 writes it.
const std::string kTwoNodes = R"(h0:10:10 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
h0:10:11 [0] NCCL INFO NCCL_HOSTID set by environment to a
h0:10:11 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
h0:10:11 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0
h0:10:11 [0] NCCL INFO + NVL[480.0] - NVS/0
h0:10:11 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 3.000000/2.500000, type NVL/PHB, sameChannels 1
h0:10:11 [0] NCCL INFO comm 0x55 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
h1:20:21 [0] NCCL INFO comm 0x56 rank 2 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0
h0:10:11 [0] NCCL INFO Channel 00/02 :    0   1   2   3
h0:10:11 [0] NCCL INFO Channel 01/02 :    0   3   2   1
h0:10:11 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2
h1:20:21 [0] NCCL INFO Trees [0] 3/-1/-1->2->0 [1] 3/0/-1->2->-1
h0:11:12 [1] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] -1/-1/-1->1->0
h1:21:22 [1] NCCL INFO Trees [0] -1/-1/-1->3->2 [1] -1/-1/-1->3->2
h0:10:11 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
h1:20:23 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [receive] via NET/IB/0(3)/GDRDMA(PCI)/Shared
h0:11:13 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(3)/GDRDMA(PCI)/Shared
h0:10:13 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
h0:10:13 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via SHM/direct/direct
h0:10:13 [0] NCCL INFO CollNet 00/0 : 0 [receive] via COLLNET/SHARP/1/GDRDMA
h0:10:10 [0] NCCL INFO AllReduce: 2097152 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
h0:10:10 [0] NCCL INFO AllGather: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
)";

TEST(NcclLogParser, WholeLogOfTwoNodes) {
  const NcclLog log = parse(kTwoNodes);
  EXPECT_EQ(log.version, "2.28.9");
  EXPECT_EQ(log.ranks, 4);
  EXPECT_TRUE(log.ranks_told);
  EXPECT_EQ(log.nodes, 2);
  EXPECT_EQ(log.channels, 2);
  EXPECT_EQ(log.nvls_channels, 0);
  EXPECT_TRUE(log.has_nvswitch);
  EXPECT_EQ(log.rings.at(0), (Ring{0, 1, 2, 3}));
  EXPECT_EQ(log.rings.at(1), (Ring{0, 3, 2, 1}));
  EXPECT_EQ(log.environment.at("NCCL_HOSTID"), "a");
  EXPECT_EQ(log.environment.at("NCCL_NVLS_ENABLE"), "0");
  EXPECT_EQ(log.environment.at("NCCL_IB_HCA"), "mlx5_0");
  EXPECT_EQ(log.unreadable_lines, 0);
  EXPECT_EQ(log.contradictions, 0);
}

TEST(NcclLogParser, TreesHaveParentAndChildren) {
  const NcclLog log = parse(kTwoNodes);
  ASSERT_EQ(log.trees.at(0).size(), 4u);
  EXPECT_EQ(log.trees.at(0).at(0).parent, -1);
  EXPECT_EQ(log.trees.at(0).at(0).children, (Ring{1, 2}));
  EXPECT_EQ(log.trees.at(0).at(3).parent, 2);
  EXPECT_TRUE(log.trees.at(0).at(3).children.empty());
  EXPECT_EQ(log.trees.at(1).at(2).children, (Ring{3, 0}));
}

TEST(NcclLogParser, TransportsOnceEach) {
  const NcclLog log = parse(kTwoNodes);
  const std::vector<NcclTransport> expected = {{std::nullopt, 0, 0, "COLLNET/SHARP/1/GDRDMA"},
                                               {0, 1, 0, "P2P/CUMEM/read"},
                                               {0, 1, 1, "SHM/direct/direct"},
                                               {1, 2, 0, "NET/IB/0(3)/GDRDMA(PCI)/Shared"}};
  EXPECT_EQ(log.transports, expected);
}

TEST(NcclLogParser, GraphsAndChoices) {
  const NcclLog log = parse(kTwoNodes);
  ASSERT_EQ(log.graphs.size(), 1u);
  EXPECT_EQ(log.graphs[0], (NcclGraph{"Ring", 2, 3.0, 2.5, "NVL", "PHB"}));
  EXPECT_EQ(log.choices.at({"AllReduce", 2097152}).algorithm, "Ring");
  EXPECT_EQ(log.choices.at({"AllGather", 4096}).protocol, "LL");
}

TEST(NcclLogParser, OlderForms) {
  const NcclLog log = parse(
      "h:1:2 [0] NCCL INFO Channel 00/02 :    0   1\n"
      "h:1:2 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1|-1->0->1/-1/-1 [1] -1/-1/-1->0->1|1->0->-1/-1/-1\n"
      "h:1:2 [0] NCCL INFO Channel 00 : 0[1b000] -> 1[1c000] via P2P/IPC\n"
      "h:1:2 [0] NCCL INFO Channel 01 : 0[1b000] -> 1[1c000] via direct shared memory\n"
      "h:1:2 [0] NCCL INFO Channel 01 : 1[1c000] -> 0[1b000] via P2P/indirect/2[1d000]\n"
      "h:1:2 [0] NCCL INFO Channel 00 : 1[1c000] -> 0[1b000] [receive] via NET/IB/1/GDRDMA\n"
      "h:1:2 [0] NCCL INFO Coll 00 : 1 [send] via COLLNET/SHARP/0\n"
      "h:1:2 [0] NCCL INFO Pattern 3, crossNic 0, nChannels 2, speed 22.000000/22.000000, type NVL/PIX, sameChannels "
      "1\n"
      "h:1:2 [0] NCCL INFO comm 0x7f rank 0 nranks 2 cudaDev 0 busId 1b000 - Init COMPLETE\n");
  EXPECT_EQ(log.unreadable_lines, 0) << log.unreadable_examples[0];
  EXPECT_EQ(log.version, "unknown");
  EXPECT_EQ(log.ranks, 2);
  EXPECT_EQ(log.nodes, 0);
  EXPECT_EQ(log.channels, 2);
  EXPECT_EQ(log.trees.at(1).at(0).parent, 1);
  EXPECT_EQ(log.graphs.at(0).pattern, "Tree");
  const std::vector<NcclTransport> expected = {{0, 1, 0, "P2P/IPC"},
                                               {0, 1, 1, "SHM"},
                                               {1, std::nullopt, 0, "COLLNET/SHARP/0"},
                                               {1, 0, 0, "NET/IB/1/GDRDMA"},
                                               {1, 0, 1, "P2P/indirect/2"}};
  auto sorted = expected;
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(log.transports, sorted);
}

/// As the format strings of NCCL 2.18.3 write it.
TEST(NcclLogParser, Nccl218) {
  const NcclLog log = parse(
      "h:1:1 [0] NCCL INFO cudaDriverVersion 12020\n"
      "NCCL version 2.18.3+cuda12.2\n"
      "h:1:7 [0] NCCL INFO comm 0x55 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId a000 commId 0x9d - Init START\n"
      "h:1:7 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to SYS\n"
      "h:1:7 [0] NCCL INFO NCCL_MIN_NCHANNELS set by environment to 2.\n"
      "h:1:7 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 2, bw 12.000000/12.000000, type PHB/PIX, sameChannels 1\n"
      "h:1:7 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
      "h:1:7 [0] NCCL INFO Channel 01/02 :    0   1   2   3\n"
      "h:1:7 [0] NCCL INFO Trees [0] 1/2/-1->0->-1 [1] 1/-1/-1->0->2\n"
      "h:1:7 [0] NCCL INFO P2P Chunksize set to 131072\n"
      "h:1:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC/read\n"
      "h:1:7 [0] NCCL INFO Channel 01/0 : 0[a000] -> 1[b000] via P2P/IPC\n"
      "h:2:8 [1] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0(0)/GDRDMA\n"
      "h:3:9 [2] NCCL INFO Channel 00/0 : 2[2] -> 3[3] via P2P/indirect/1[1]/read\n"
      "h:3:9 [2] NCCL INFO Channel 01 : 2[2] -> 3[3] via SHM/CE/direct\n"
      "h:1:7 [0] NCCL INFO Connected all rings\n"
      "h:1:7 [0] NCCL INFO 2 coll channels, 1 nvls channels, 4 p2p channels, 2 p2p channels per peer\n"
      "h:1:7 [0] NCCL INFO comm 0x55 rank 0 nranks 4 cudaDev 0 nvmlDev 0 busId a000 commId 0x9d - Init COMPLETE\n");
  EXPECT_EQ(log.unreadable_lines, 0) << log.unreadable_examples[0];
  EXPECT_EQ(log.contradictions, 0);
  EXPECT_EQ(log.version, "2.18.3");
  EXPECT_EQ(log.ranks, 4);
  EXPECT_TRUE(log.ranks_told);
  EXPECT_EQ(log.channels, 2);
  EXPECT_EQ(log.nvls_channels, 1);
  EXPECT_EQ(log.rings.size(), 2u);
  EXPECT_EQ(log.environment.at("NCCL_MIN_NCHANNELS"), "2");
  const std::vector<NcclTransport> expected = {{0, 1, 0, "P2P/IPC/read"},
                                               {0, 1, 1, "P2P/IPC"},
                                               {1, 2, 0, "NET/IB/0(0)/GDRDMA"},
                                               {2, 3, 0, "P2P/indirect/1"},
                                               {2, 3, 1, "SHM/CE/direct"}};
  EXPECT_EQ(log.transports, expected);
}

/// As the format strings of NCCL 2.21.5 write it: its tuner does not name the collective.
TEST(NcclLogParser, Nccl221) {
  const NcclLog log = parse(
      "h:1:1 [0] NCCL INFO NCCL version 2.21.5+cuda12.4\n"
      "h:1:7 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId a000 commId 0x9d - "
      "Init "
      "START\n"
      "h:1:7 [0] NCCL INFO comm 0x55 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
      "h:1:7 [0] NCCL INFO Channel 00/02 :    0   1\n"
      "h:1:7 [0] NCCL INFO Channel 01/02 :    0   1\n"
      "h:1:7 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1\n"
      "h:1:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n"
      "h:2:8 [1] NCCL INFO Channel 01/0 : 1[1] -> 0[0] via P2P/direct pointer\n"
      "h:1:7 [0] NCCL INFO 2 coll channels, 2 collnet channels, 0 nvls channels, 4 p2p channels, 4 p2p channels per "
      "peer\n"
      "h:1:7 [0] NCCL INFO TUNER/Plugin: Failed to find ncclTunerPlugin_v3, using internal tuner instead.\n"
      "h:1:7 [0] NCCL INFO ncclCommInitRank comm 0x55 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId a000 commId 0x9d - "
      "Init "
      "COMPLETE\n"
      "h:1:1 [0] NCCL INFO 1048576 Bytes -> Algo 1 proto 2 time 51.400002\n"
      "h:1:1 [0] NCCL INFO 4096 Bytes -> Algo 0 proto 0 time 12.100000\n");
  EXPECT_EQ(log.unreadable_lines, 0) << log.unreadable_examples[0];
  EXPECT_EQ(log.version, "2.21.5");
  EXPECT_EQ(log.ranks, 2);
  EXPECT_EQ(log.nodes, 1);
  EXPECT_EQ(log.channels, 2);
  EXPECT_EQ(log.nvls_channels, 0);
  EXPECT_EQ(log.transports, (std::vector<NcclTransport>{{0, 1, 0, "P2P/CUMEM/read"}, {1, 0, 1, "P2P/direct pointer"}}));
  ASSERT_EQ(log.choices.size(), 2u);
  EXPECT_EQ(log.choices.at({kNcclUnnamedCollective, 1048576}).algorithm, "Ring");
  EXPECT_EQ(log.choices.at({kNcclUnnamedCollective, 1048576}).protocol, "Simple");
  EXPECT_EQ(log.choices.at({kNcclUnnamedCollective, 4096}).algorithm, "Tree");
  EXPECT_EQ(log.choices.at({kNcclUnnamedCollective, 4096}).protocol, "LL");
  EXPECT_EQ(usage_of(log).algorithm, "Ring");
}

TEST(NcclLogParser, RecordedRings) {
  const NcclLog one_node = recorded("a100_1x4_rings.log");  // with lines left out by whoever recorded it
  EXPECT_EQ(one_node.channels, 24);
  EXPECT_EQ(one_node.ranks, 4);
  EXPECT_FALSE(one_node.ranks_told);
  EXPECT_EQ(one_node.rings.size(), 6u);
  EXPECT_EQ(one_node.rings.at(2), (Ring{0, 2, 3, 1}));
  EXPECT_EQ(one_node.rings.at(23), (Ring{0, 3, 2, 1}));
  EXPECT_EQ(one_node.unreadable_lines, 0);
  for (const char* name : {"a100_2x2_rings.log", "a100_4x1_rings.log"}) {
    EXPECT_EQ(recorded(name).rings, (std::map<int, Ring>{{0, {0, 1, 2, 3}}, {1, {0, 1, 2, 3}}})) << name;
  }
}

TEST(NcclLogParser, RecordedTrees) {
  const NcclLog one_node = recorded("a100_1x4_trees.log");
  EXPECT_EQ(one_node.trees.size(), 6u);     // what stands after the ellipses of the recording is missing ...
  EXPECT_EQ(one_node.unreadable_lines, 4);  // ... and that is told
  EXPECT_EQ(one_node.trees.at(4).at(1).children, Ring{3});
  const NcclLog two_nodes = recorded("a100_2x2_trees.log");
  EXPECT_EQ(two_nodes.trees.at(0).at(0).children, (Ring{1, 2}));
  EXPECT_EQ(two_nodes.trees.at(1).at(2).children, (Ring{3, 0}));
  EXPECT_EQ(two_nodes.unreadable_lines, 0);
  const NcclLog four_nodes = recorded("a100_4x1_trees.log");
  EXPECT_EQ(four_nodes.trees.at(0).at(2).children, (Ring{1, 3}));
  EXPECT_EQ(four_nodes.trees.at(1).at(3).parent, -1);
}

TEST(NcclLogParser, RecordedRanksThatShareAGpu) {
  const NcclLog log = recorded("h200_shared_by_4_ranks.log");
  EXPECT_EQ(log.version, "2.32.3");
  EXPECT_EQ(log.ranks, 4);
  EXPECT_EQ(log.nodes, 1);
  EXPECT_EQ(log.channels, 4);
  EXPECT_EQ(log.rings.at(3), (Ring{0, 1, 2, 3}));
  EXPECT_EQ(log.transports.size(), 16u);
  EXPECT_EQ(log.transports.front(), (NcclTransport{0, 1, 0, "P2P/CUMEM"}));
  EXPECT_EQ(log.enabled.at("AllReduce").algorithms, std::vector<std::string>{"Ring"});
  EXPECT_EQ(log.choices.at({"AllReduce", 11120640}).protocol, "LL128");
  EXPECT_EQ(log.environment.at("NCCL_ALGO"), "Ring");
  EXPECT_EQ(log.unreadable_lines, 0);
}

TEST(NcclLogParser, RecordedTransports) {
  const NcclLog shared_memory = recorded("a100_p2p_level_0.log");
  EXPECT_EQ(shared_memory.transports.size(), 8u);
  for (const auto& transport : shared_memory.transports) EXPECT_EQ(transport.via, "SHM");
  EXPECT_EQ(shared_memory.environment.at("NCCL_P2P_LEVEL"), "LOC");
  EXPECT_EQ(shared_memory.channels, 4);
  const NcclLog direct = recorded("a100_p2p_level_1.log");
  for (const auto& transport : direct.transports) EXPECT_EQ(transport.via, "P2P/IPC/read");
  EXPECT_EQ(direct.channels, 24);
  EXPECT_EQ(recorded("v100_pair_0_3_nvlink.log").transports.front(), (NcclTransport{0, 1, 0, "P2P/IPC"}));
  EXPECT_EQ(recorded("v100_pair_1_7_shm.log").transports.size(), 4u);
}

/// Wherever the log ends, nothing is told that the whole log does not tell.
TEST(NcclLogParser, CutAnywhere) {
  const NcclLog whole = parse(kTwoNodes);
  for (std::size_t length = 0; length <= kTwoNodes.size(); ++length) {
    const NcclLog log = parse(kTwoNodes.substr(0, length));
    EXPECT_TRUE(log.ranks == whole.ranks || !log.ranks_told) << length;
    EXPECT_TRUE(log.nodes == whole.nodes || log.nodes == 0) << length;
    for (const auto& [name, value] : log.environment) EXPECT_EQ(value, whole.environment.at(name)) << length;
    for (const auto& [channel, ring] : log.rings) EXPECT_EQ(ring, whole.rings.at(channel)) << length;
    for (const auto& [channel, tree] : log.trees) {
      for (const auto& [rank, node] : tree) {
        EXPECT_EQ(node.parent, whole.trees.at(channel).at(rank).parent) << length;
        EXPECT_EQ(node.children, whole.trees.at(channel).at(rank).children) << length;
      }
    }
  }
}

/// NCCL ends the line of a ring after 127 characters, as many as 28 ranks take.
TEST(NcclLogParser, RingsOfManyRanksComeFromTheirNeighbours) {
  constexpr int kRanks = 40;
  std::string text = "n0:1:2 [0] NCCL INFO comm 0x5 rank 0 nRanks 40 nNodes 5 localRanks 8 localRank 0 MNNVL 0\n";
  std::string line = "Channel 00/02 :";
  for (int rank = 0; rank < kRanks; ++rank) line += fmt::format("{:4d}", rank);
  text += "n0:1:2 [0] NCCL INFO " + line.substr(0, 127) + "\n";
  std::string neighbours;
  for (int rank = 0; rank < kRanks; ++rank) {
    neighbours += fmt::format("n{}:1:2 [0] NCCL INFO Ring 00 : {} -> {} -> {}\n", rank / 8,
                              (rank + kRanks - 1) % kRanks, rank, (rank + 1) % kRanks);
  }
  const NcclLog log = parse(text + neighbours);
  ASSERT_EQ(log.rings.size(), 1u);
  Ring expected(kRanks);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(log.rings.at(0), expected);
  EXPECT_EQ(log.unreadable_lines, 0);
  EXPECT_EQ(log.contradictions, 0);

  const std::string without_last = neighbours.substr(0, neighbours.rfind("n4:"));
  EXPECT_TRUE(parse(text + without_last).rings.empty());
  const std::string two_circles = without_last + "n4:1:2 [0] NCCL INFO Ring 00 : 38 -> 39 -> 20\n";
  EXPECT_TRUE(parse(text + two_circles).rings.empty());
  EXPECT_EQ(parse(text + neighbours + "n4:1:2 [0] NCCL INFO Ring 00 : 38 -> 39 -> 20\n").contradictions, 1);
  EXPECT_EQ(parse(text + without_last + "n4:1:2 [0] NCCL INFO Ring 00 : 38 -> 39 -> 0").unreadable_lines, 2);
  EXPECT_EQ(parse("NCCL INFO Ring 00 : 0[160] -> 1[160] [send] via NET/Socket/0\n").rings.size(), 0u);  // of NCCL 2.7
}

TEST(NcclLogParser, NetworkWhoseNameHasASpace) {
  const NcclLog log = parse(
      "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/2/GDRDMA/Shared\n"
      "NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via NET/AWS Libh0:10:13 [0] NCCL INFO Connected all rings\n");
  ASSERT_EQ(log.transports.size(), 1u);
  EXPECT_EQ(log.transports[0].via, "NET/AWS Libfabric/2/GDRDMA/Shared");
  EXPECT_EQ(log.unreadable_lines, 1);
}

TEST(NcclLogParser, CutLinesAreCountedAndShown) {
  const NcclLog log = parse(
      "h:1:1 [0] NCCL INFO comm 0x5 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
      "h:1:1 [0] NCCL INFO Channel 00/02 :    0   1   2   3\n"
      "h:1:1 [0] NCCL INFO Channel 01/02 :    0   1   2\n"
      "h:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/\n"
      "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/TELEPATHY\n"
      "h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> \n"
      "h:1:1 [0] NCCL INFO NCCL version 2.2x\n"
      "Epoch 1/1\n");
  EXPECT_EQ(log.rings.size(), 1u);
  EXPECT_EQ(log.trees.at(0).size(), 1u);
  EXPECT_EQ(log.trees.count(1), 0u);
  EXPECT_TRUE(log.transports.empty());
  EXPECT_EQ(log.unreadable_lines, 5);
  ASSERT_EQ(log.unreadable_examples.size(), 3u);
  EXPECT_NE(log.unreadable_examples[0].find("line 4: Trees"), std::string::npos) << log.unreadable_examples[0];
}

TEST(NcclLogParser, RanksInterleavedWithinALine) {
  const NcclLog log = parse(
      "h:1:1 [0] NCCL INFO Channel 00/02 :    0   1h:2:2 [1] NCCL INFO Trees [0] -1/-1/-1->1->0 [1] -1/-1/-1->1->0\n"
      "h:1:1 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1h:2:2 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] "
      "via P2P/CUMEM/readh:1:1 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVLh:2:2 [1] NCCL INFO Connected\n");
  EXPECT_EQ(log.trees.at(1).size(), 2u);
  ASSERT_EQ(log.transports.size(), 1u);
  EXPECT_EQ(log.transports[0].via, "P2P/CUMEM/read");
  EXPECT_TRUE(log.environment.empty());  // where the value ends is anybody's guess
  EXPECT_EQ(log.unreadable_lines, 1);
  EXPECT_EQ(log.rings.at(0), (Ring{0, 1}));
}

TEST(NcclLogParser, UnknownVersionWithKnownLines) {
  const NcclLog log =
      parse("h:1:1 [0] NCCL INFO NCCL version 9.1.0+cuda20.0\nh:1:1 [0] NCCL INFO Channel 00/01 : 0 1\n");
  EXPECT_EQ(log.version, "9.1.0");
  EXPECT_EQ(log.rings.size(), 1u);
}

TEST(NcclLogParser, SeveralCommunicatorsContradict) {
  const NcclLog log = parse(
      "h:1:1 [0] NCCL INFO comm 0x5 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0\n"
      "h:1:1 [0] NCCL INFO Channel 00/01 :    0   1   2   3\n"
      "h:1:1 [0] NCCL INFO comm 0x6 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
      "h:1:1 [0] NCCL INFO Channel 00/01 :    0   1\n");
  EXPECT_EQ(log.ranks, 4);
  EXPECT_EQ(log.rings.at(0).size(), 4u);
  EXPECT_EQ(log.contradictions, 2);
}

TEST(NcclLogParser, NumbersOutOfRangeAreUnreadable) {
  for (const char* message :
       {"Channel 99999999999999999999/02 : 0 1", "Channel 4000/4001 : 0 1", "Channel 02/02 : 0 1",
        "Channel 00/02 : 0 0", "Channel 00/02 : -1 0", "Trees [5000] 1/-1/-1->0->-1", "Trees [0] 1/-2/-1->0->-1",
        "comm 0x5 rank 0 nRanks 0 nNodes 1", "AllReduce: -5 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}",
        "AllReduce: 5 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..1}"}) {
    const NcclLog log = parse(std::string("NCCL INFO ") + message + "\n");
    EXPECT_EQ(log.unreadable_lines, 1) << message;
    EXPECT_TRUE(log.rings.empty() && log.trees.empty() && log.choices.empty()) << message;
  }
}

/// Damaged logs and noise: no crash, and what is kept is within its limits.
TEST(NcclLogParser, RandomDamage) {
  std::mt19937 random(7);
  const auto below = [&](std::size_t end) { return static_cast<std::size_t>(random() % end); };
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 3 == 0 ? std::string(below(600), ' ') : kTwoNodes;
    const std::size_t changes = round % 3 == 0 ? text.size() : 1 + below(60);
    for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
      const std::size_t at = below(text.size());
      if (below(4) == 0) {
        text.erase(at, below(80));
      } else {
        text[at] = static_cast<char>(below(256));
      }
    }
    if (round % 5 == 0) text += std::string(100000, "[0 /-"[below(5)]);
    const NcclLog log = parse(text);
    EXPECT_LE(log.unreadable_examples.size(), 3u);
    for (const auto& [channel, ring] : log.rings) EXPECT_EQ(static_cast<int>(ring.size()), log.ranks) << text;
  }
}

}  // namespace
}  // namespace ddptrain
