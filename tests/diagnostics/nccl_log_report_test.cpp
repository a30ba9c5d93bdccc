#include "runtime/diagnostics/nccl_log_report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/diagnostics/recorded_log.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

using nlohmann::json;

/// Of one node with 2 ranks; the lines given are added.
NcclLog one_node(const std::string& lines = "") {
  return parse("NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n" + lines);
}

std::string why(const std::vector<IneffectiveSetting>& settings, const std::string& name) {
  for (const auto& setting : settings) {
    if (setting.name == name) return setting.why;
  }
  return "effective";
}

TEST(NcclText, EqualChannelsShareALine) {
  const std::string text = nccl_text(recorded("a100_1x4_rings.log"), {});
  EXPECT_TRUE(says(text, "  0, 6  0 -> 1 -> 2 -> 3 -> 0\n")) << text;
  EXPECT_TRUE(says(text, "  23    0 -> 3 -> 2 -> 1 -> 0\n")) << text;
}

TEST(NcclText, TreesFromTheRoot) {
  const std::string two_nodes = nccl_text(recorded("a100_2x2_trees.log"), {});
  EXPECT_TRUE(says(two_nodes, "  0  0 (1, 2 - 3)\n")) << two_nodes;
  EXPECT_TRUE(says(two_nodes, "  1  2 (3, 0 - 1)\n")) << two_nodes;
  const std::string four_nodes = nccl_text(recorded("a100_4x1_trees.log"), {});
  EXPECT_TRUE(says(four_nodes, "  0  0 - 2 (1, 3)\n")) << four_nodes;
  EXPECT_TRUE(says(four_nodes, "  1  3 - 1 (2, 0)\n")) << four_nodes;
}

TEST(NcclText, TreesWithMissingLinesAndCircles) {
  EXPECT_TRUE(says(nccl_text(parse("NCCL INFO Trees [0] 1/2/-1->0->-1\nNCCL INFO Trees [0] 3/-1/-1->2->0\n"), {}),
                   "  0  0 (1 .., 2 - 3 ..)\n"));
  EXPECT_TRUE(says(nccl_text(parse("NCCL INFO Trees [0] 3/-1/-1->2->0\n"), {}), "  0  .. 0 - 2 - 3 ..\n"));
  EXPECT_TRUE(says(nccl_text(parse("NCCL INFO Trees [0] 1/-1/-1->0->1\nNCCL INFO Trees [0] 0/-1/-1->1->0\n"), {}),
                   "  0  0 - 1\n"));
  std::string chain;
  for (int i = 0; i < 50000; ++i) {
    chain += "NCCL INFO Trees [0] " + std::to_string(i + 1) + "/-1/-1->" + std::to_string(i) + "->" +
             std::to_string(i - 1) + "\n";
  }
  EXPECT_TRUE(says(nccl_text(parse(chain), {}), "998 - 999 - 1000 .."));
}

TEST(NcclText, TransportsAndWhatCouldNotBeRead) {
  const std::string text = nccl_text(recorded("a100_p2p_level_1.log"), {});
  EXPECT_TRUE(says(text, "  0     1   P2P/IPC/read  0, 4-5, 22-23\n")) << text;
  EXPECT_TRUE(says(text, "  1     0   P2P/IPC/read  0-10, 21-23\n")) << text;
  EXPECT_TRUE(says(text, "NCCL_P2P_LEVEL  PIX")) << text;
  EXPECT_TRUE(says(nccl_text(parse("NCCL INFO Channel 00/0 : 0[0] -> \n"), {}), "1 line could not be read")) << text;
  EXPECT_TRUE(says(nccl_text(parse("Epoch 1/1\n"), {}), "Nothing of NCCL was found")) << text;
}

TEST(NcclJson, HasTheSchemaOfTheDocumentation) {
  const json nccl = nccl_json(recorded("a100_2x2_trees.log"), {{"NCCL_X", "1", "because"}});
  EXPECT_TRUE(nccl.at("version").is_null());
  EXPECT_EQ(nccl.at("ranks"), 4);
  EXPECT_EQ(nccl.at("trees").size(), 2u);
  EXPECT_EQ(nccl.at("trees").at(0).at(0), (json{{"rank", 0}, {"parent", nullptr}, {"children", {1, 2}}}));
  EXPECT_EQ(nccl.at("ineffective").at(0).at("why"), "because");
  EXPECT_EQ(nccl.at("unreadable_lines"), 0);
  const json rings = nccl_json(recorded("a100_1x4_rings.log"), {}).at("rings");
  ASSERT_EQ(rings.size(), 24u);
  EXPECT_EQ(rings.at(1), (json{0, 1, 3, 2}));
  EXPECT_TRUE(rings.at(3).is_null());
  const json transports = nccl_json(recorded("v100_pair_1_7_shm.log"), {}).at("transports");
  EXPECT_EQ(transports.at(0), (json{{"from", 0}, {"to", 1}, {"channel", 0}, {"via", "SHM"}}));
}

TEST(Ineffective, P2pLevelWhereAllGpusAreJoinedByNvlink) {
  const std::string set = "NCCL INFO NCCL_P2P_LEVEL set by environment to ";
  EXPECT_TRUE(says(why(ineffective_settings(one_node(set + "PIX\n"), {}, true), "NCCL_P2P_LEVEL"), "NVLink"));
  EXPECT_TRUE(says(
      why(ineffective_settings(one_node(set + "PIX\nNCCL INFO + NVL[1.0] - NVS/0\n"), {}, false), "NCCL_P2P_LEVEL"),
      "NVLink"));
  EXPECT_EQ(why(ineffective_settings(one_node(set + "PIX\n"), {}, false), "NCCL_P2P_LEVEL"), "effective");
  EXPECT_EQ(why(ineffective_settings(one_node(set + "LOC\n"), {}, true), "NCCL_P2P_LEVEL"), "effective");
  EXPECT_EQ(why(ineffective_settings(one_node(set + "0\n"), {}, true), "NCCL_P2P_LEVEL"), "effective");
}

TEST(Ineffective, AlgorithmsThatDidNotRun) {
  const std::string ring = "NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n";
  const std::string symmetric = "NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4\n";
  const std::string tree_set = "NCCL INFO NCCL_ALGO set by environment to Tree\n";
  const std::string ring_set = "NCCL INFO NCCL_ALGO set by environment to ring\n";
  EXPECT_TRUE(says(why(ineffective_settings(one_node(tree_set + ring), {}, false), "NCCL_ALGO"), "Ring"));
  EXPECT_TRUE(says(why(ineffective_settings(one_node(ring_set + symmetric), {}, false), "NCCL_ALGO"), "symmetric"));
  EXPECT_EQ(why(ineffective_settings(one_node(ring_set + ring), {}, false), "NCCL_ALGO"), "effective");
  EXPECT_EQ(why(ineffective_settings(one_node(tree_set), {}, false), "NCCL_ALGO"), "effective");
}

TEST(Ineffective, ThreadsAndBuffersOfSymmetricKernels) {
  const std::string symmetric = "NCCL INFO AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 4\n";
  const std::string ring = "NCCL INFO AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}\n";
  for (const char* name : {"NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"}) {
    const std::string set = fmt::format("NCCL INFO {} set by environment to 1.\n", name);
    EXPECT_TRUE(says(why(ineffective_settings(one_node(set + symmetric), {}, false), name), "symmetric")) << name;
    EXPECT_EQ(why(ineffective_settings(one_node(set + ring), {}, false), name), "effective") << name;
  }
}

TEST(Ineffective, NetworkSettingsWithinANode) {
  const std::string set =
      "NCCL INFO NCCL_IB_HCA set to mlx5_0\nNCCL INFO NCCL_SOCKET_IFNAME set by environment to lo\n";
  const auto settings = ineffective_settings(one_node(set), {}, false);
  EXPECT_TRUE(says(why(settings, "NCCL_IB_HCA"), "network"));
  EXPECT_EQ(why(settings, "NCCL_SOCKET_IFNAME"), "effective");  // the ranks find each other through it
  const std::string net = "NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n";
  EXPECT_EQ(why(ineffective_settings(one_node(set + net), {}, false), "NCCL_IB_HCA"), "effective");
}

TEST(Ineffective, VariablesThatTheLogNeverMentions) {
  const auto settings =
      ineffective_settings(one_node("NCCL INFO NCCL_CROSS_NICS set by environment to 1.\n"),
                           {{"NCCL_P2P_LEVLE", "LOC"}, {"NCCL_DEBUG", "INFO"}, {"NCCL_CROSS_NICS", "1"}}, false);
  ASSERT_EQ(settings.size(), 1u);
  EXPECT_EQ(settings[0].name, "NCCL_P2P_LEVLE");
  EXPECT_EQ(settings[0].value, "LOC");
}

TEST(Ineffective, OneRankPerNodeAndP2pSwitchedOff) {
  const NcclLog nodes = parse(
      "NCCL INFO comm 0x5 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
      "NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\n");
  EXPECT_TRUE(says(why(ineffective_settings(nodes, {}, false), "NCCL_P2P_LEVEL"), "share a node"));
  const NcclLog off = one_node(
      "NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\nNCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n");
  EXPECT_TRUE(says(why(ineffective_settings(off, {}, false), "NCCL_P2P_LEVEL"), "NCCL_P2P_DISABLE"));
}

}  // namespace
}  // namespace ddptrain
