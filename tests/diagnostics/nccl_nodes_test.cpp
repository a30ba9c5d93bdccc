#include "runtime/diagnostics/nccl_nodes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/diagnostics/nccl_log_report.h"
#include "tests/diagnostics/recorded_log.h"

namespace ddptrain {
namespace {

using nlohmann::json;
using Ranks = std::vector<std::vector<int>>;

NcclLog two_nodes() { return recorded("two_nodes_ib.log"); }

Ranks ranks_of(const NcclLog& log) {
  Ranks ranks;
  for (const NcclNode& node : log.ranks_by_node) ranks.push_back(node.ranks);
  return ranks;
}

/// A line of each rank, in which it says its place.
std::string places(const std::vector<std::pair<int, int>>& local, int nodes) {
  std::string text;
  for (std::size_t rank = 0; rank < local.size(); ++rank) {
    text += "vm:1:2 [0] NCCL INFO comm 0x1 rank " + std::to_string(rank) + " nRanks " + std::to_string(local.size()) +
            " nNodes " + std::to_string(nodes) + " localRanks " + std::to_string(local[rank].second) + " localRank " +
            std::to_string(local[rank].first) + " MNNVL 0\n";
  }
  return text;
}

std::string joined(int from, int to, const std::string& via) {
  return "NCCL INFO Channel 00/0 : " + std::to_string(from) + "[0] -> " + std::to_string(to) + "[0] via " + via + "\n";
}

TEST(NcclNodes, RanksOfTwoHosts) {
  const NcclLog log = two_nodes();
  EXPECT_EQ(ranks_of(log), (Ranks{{0, 1}, {2, 3}}));
  EXPECT_EQ(log.ranks_by_node.at(0).host, "node1");
  EXPECT_EQ(log.ranks_by_node.at(1).host, "node2");
  EXPECT_EQ(log.unreadable_lines, 0);
}

TEST(NcclNodes, NodesOfOneHostHaveNoNames) {
  const NcclLog log = parse(places({{0, 2}, {1, 2}, {0, 2}, {1, 2}}, 2));
  EXPECT_EQ(ranks_of(log), (Ranks{{0, 1}, {2, 3}}));
  EXPECT_EQ(log.ranks_by_node.at(0).host, "");
}

TEST(NcclNodes, RanksInTurnAreFoundByTransports) {
  const std::string said = places({{0, 2}, {0, 2}, {1, 2}, {1, 2}}, 2);
  EXPECT_TRUE(parse(said).ranks_by_node.empty());
  const std::string links =
      joined(0, 2, "P2P/CUMEM/read") + joined(1, 3, "SHM/direct/direct") + joined(2, 1, "NET/IB/0");
  EXPECT_EQ(ranks_of(parse(said + links)), (Ranks{{0, 2}, {1, 3}}));
  EXPECT_EQ(ranks_of(parse(links)), (Ranks{{0, 2}, {1, 3}}));
}

TEST(NcclNodes, TransportsThatContradictTheNumberOfNodesTellNothing) {
  const std::string said = places({{0, 2}, {0, 2}, {1, 2}, {1, 2}}, 2);
  EXPECT_TRUE(parse(said + joined(0, 2, "P2P/CUMEM") + joined(2, 1, "NET/IB/0")).ranks_by_node.empty());
}

TEST(NcclNodes, LinksOfSeveralNodesByNvlinkJoinNone) {
  EXPECT_EQ(ranks_of(parse(joined(0, 1, "P2P/MNNVL"))), (Ranks{{0}, {1}}));
}

TEST(NcclNodes, WhatTheNetworkIs) {
  const NcclNetwork network = two_nodes().network;
  EXPECT_EQ(network.name, "IB");
  EXPECT_EQ(network.adapters, (std::vector<std::string>{"[0]mlx5_0:1/IB", "[1]mlx5_1:1/IB"}));
  EXPECT_EQ(network.gdr_enabled, (std::set<std::string>{"GPU 0 / HCA 0", "HCA 0 'mlx5_0'"}));
  EXPECT_EQ(network.gdr_disabled, (std::set<std::string>{"GPU 1 / HCA 1"}));
  EXPECT_FALSE(network.pxn_disabled);
  EXPECT_TRUE(parse("NCCL INFO PXN Disabled as plugin is v4\n").network.pxn_disabled);
  EXPECT_EQ(parse("h:1:2 [0] NCCL INFO Using network AWS Libfabric\n").network.name, "AWS Libfabric");
}

TEST(NcclNodes, TheReportSaysIt) {
  const NcclLog log = two_nodes();
  const std::string text = nccl_text(log, {});
  for (const char* part :
       {"node1  0-1", "node2  2-3", "GPUDirect RDMA", "3 of 4 connections over the network", "mlx5_1:1/IB",
        "2 of 4 connections over the network", "Algorithms and protocols that NCCL enabled", "LL LL128 Simple"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  const json all = nccl_json(log, {});
  EXPECT_EQ(all.at("ranks_by_node").at(1), (json{{"host", "node2"}, {"ranks", {2, 3}}}));
  const json& enabled = all.at("enabled");
  ASSERT_EQ(enabled.size(), 2u);
  EXPECT_EQ(enabled.at(0).at("collective"), "AllReduce");
  EXPECT_EQ(enabled.at(0).at("algorithms"), (json{"Tree", "Ring"}));
  EXPECT_EQ(enabled.at(1).at("algorithms"), json::array({"Ring"}));
  EXPECT_EQ(all.at("network").at("gpu_direct_used"), true);
  EXPECT_EQ(all.at("network").at("pxn_used"), true);
  EXPECT_EQ(all.at("network").at("pxn_disabled"), false);
}

TEST(NcclNodes, AMatrixOfOneProtocol) {
  const std::string head = "NCCL INFO Enabled NCCL Func/Proto/Algo Matrix:\n     Function |  LL  LL128 | Tree  Ring \n";
  const NcclLog log =
      parse(head + "    AllReduce |   0      1 |    0     1 \n   Reduce |  1 |  1\n Cut |   1      0 |  1");
  ASSERT_EQ(log.enabled.size(), 1u);
  EXPECT_EQ(log.enabled.at("AllReduce").protocols, (std::vector<std::string>{"LL128"}));
  EXPECT_EQ(log.enabled.at("AllReduce").algorithms, (std::vector<std::string>{"Ring"}));
  EXPECT_TRUE(parse("    AllReduce |   1   1 |  1  1 \n").enabled.empty());  // some other program's table
}

TEST(NcclNodes, NothingIsNothing) {
  EXPECT_TRUE(says_nothing(parse("")));
  EXPECT_TRUE(says_nothing(parse("Epoch 1/4\nImages/sec: 3\n")));
  EXPECT_FALSE(says_nothing(two_nodes()));
}

}  // namespace
}  // namespace ddptrain
