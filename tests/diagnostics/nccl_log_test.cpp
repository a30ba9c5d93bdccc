#include "runtime/diagnostics/nccl_log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "runtime/core/process/scoped_environment.h"

namespace ddptrain {
namespace {

NcclLog parse(const std::string& text) {
  std::istringstream log(text);
  return read_nccl_log(log);
}

NcclLog recorded(const std::string& name) {
  std::ifstream log(DDP_SOURCE_DIR "/tests/diagnostics/logs/" + name);
  EXPECT_TRUE(log) << name;
  return read_nccl_log(log);
}

NcclUsage usage_in(const std::string& text) { return usage_of(parse(text)); }

/// Version, algorithm, protocol, transport and channels.
std::string told(const std::string& text) {
  const NcclUsage usage = usage_in(text + "\n");
  return fmt::format("{} {} {} {} {}", usage.version, usage.algorithm, usage.protocol, usage.transport, usage.channels);
}

constexpr const char* kRing = R"(host:10:10 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
host:10:10 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to NVL
host:10:11 [0] NCCL INFO Channel 00/24 :    0   1   2   3
host:10:11 [0] NCCL INFO Trees [0] 1/-1/-1->0->-1 [1] 1/-1/-1->0->-1
host:10:11 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
host:10:11 [0] NCCL INFO comm 0x55 rank 0 nRanks 4 nNodes 1 localRanks 4 localRank 0 MNNVL 0
host:10:10 [0] NCCL INFO AllReduce: 1280 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..1}
host:10:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:10:12 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:10:10 [0] NCCL INFO AllReduce: 2097152 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}
host:10:10 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..3}
)";

TEST(NcclLog, TellsOfTheLargestAllReduce) {
  EXPECT_EQ(told(kRing), "2.28.9 Ring Simple P2P/CUMEM 16");
  // Channels of the communicator, before the first all-reduce.
  EXPECT_EQ(told("[0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels"),
            "unknown unknown unknown unknown 24");
  EXPECT_EQ(told("h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 1048576 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 8 "
                 "nthreads 512 nWorks 1\n"
                 "h:1:1 [0] NCCL INFO AllReduce [Symmetric]: 512 Bytes -> Kernel AllReduce_AGxLL_R nchannels 1 "
                 "nthreads 512\n"),
            "unknown Symmetric RSxLD_AGxST unknown 8");
}

TEST(NcclLog, NothingKnown) {
  for (const char* text :
       {"", "\n\n", "no word of it\n", "NCCL version\n", "NCCL INFO AllReduce: many Bytes -> Algo"}) {
    EXPECT_EQ(told(text), "unknown unknown unknown unknown 0") << text;
  }
}

/// Wherever the log ends, what is reported is what some complete line said.
TEST(NcclLog, CutAnywhere) {
  const std::string whole = kRing;
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    const NcclUsage usage = usage_in(whole.substr(0, length));
    EXPECT_TRUE(usage.algorithm == "unknown" || usage.algorithm == "Tree" || usage.algorithm == "Ring") << length;
    EXPECT_TRUE(usage.protocol == "unknown" || usage.protocol == "LL" || usage.protocol == "Simple") << length;
    EXPECT_TRUE(usage.transport == "unknown" || usage.transport == "P2P/CUMEM") << usage.transport;
    EXPECT_TRUE(usage.channels == 0 || usage.channels == 24 || usage.channels == 2 || usage.channels == 16) << length;
  }
}

TEST(NcclLog, TransportsMostFrequentFirst) {
  const auto transport = [](const std::string& text) { return usage_in(text).transport; };
  const std::string receives = "NCCL INFO Channel 01/0 : 1[0] -> 0[0] [receive] via ";
  EXPECT_EQ(transport(receives + "NET/Socket/0\n" +
                      "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read\n"
                      "NCCL INFO Channel 01/0 : 1[0] -> 0[0] [send] via NET/Socket/1(2)/Shared\n"),
            "NET/Socket+P2P/direct pointer");
  EXPECT_EQ(transport(receives + "NET/AWS Libfabric/2/GDRDMA\n"), "NET/AWS Libfabric");
}

TEST(NcclLog, OldFormats) {
  EXPECT_EQ(told("NCCL version 2.18.3+cuda12.1\n"
                 "NCCL INFO Channel 00 : 1[b000] -> 0[6000] via direct shared memory\n"
                 "NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
                 "NCCL INFO AllReduce: 4194304 Bytes -> Algo 1 proto 2 time 98.5\n"
                 "NCCL INFO 2 coll channels, 2 p2p channels, 2 p2p channels per peer\n"),
            "2.18.3 Ring Simple SHM 2");
}

TEST(NcclLog, RecordedLogs) {
  const auto read = [](const char* name) { return usage_of(recorded(name)); };
  EXPECT_EQ(read("v100_pair_1_7_shm.log").transport, "SHM");
  EXPECT_EQ(read("v100_pair_1_7_shm.log").channels, 2);
  EXPECT_EQ(read("v100_pair_0_3_nvlink.log").transport, "P2P/IPC");
  EXPECT_EQ(read("v100_pair_0_3_nvlink.log").channels, 4);
  EXPECT_EQ(read("a100_p2p_level_0.log").transport, "SHM");
  EXPECT_EQ(read("a100_p2p_level_1.log").transport, "P2P/IPC");
  EXPECT_EQ(read("a100_2x2_trees.log").transport, "unknown");
  EXPECT_EQ(recorded("h200_shared_by_4_ranks.log").connections.size(), 16u);
}

/// NCCL 2.20 to 2.22.
TEST(NcclLog, CollectivesWithoutNames) {
  const NcclLog log = parse(
      "h:1:1 [0] NCCL INFO 1048576 Bytes -> Algo 1 proto 2 time 51.400002\n"
      "h:1:1 [0] NCCL INFO 4096 Bytes -> Algo 0 proto 0 time 12.100000\n");
  EXPECT_EQ(log.choices.at({"", 4096}).algorithm, "Tree");
  EXPECT_EQ(log.choices.at({"", 4096}).protocol, "LL");
  EXPECT_EQ(usage_of(log).algorithm, "Ring");
}

TEST(NcclLogCapture, ReadsWhatIsWrittenAndLeavesNothingBehind) {
  ScopedEnvironment environment;
  environment.set("NCCL_DEBUG", std::nullopt);
  environment.set("NCCL_DEBUG_SUBSYS", "COLL");
  environment.set("NCCL_DEBUG_FILE", std::nullopt);
  {
    const NcclLogCapture capture;
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
    std::ofstream log(std::getenv("NCCL_DEBUG_FILE"));  // as NCCL opens it
    ASSERT_TRUE(log);
    log << kRing << std::flush;
    EXPECT_EQ(usage_of(capture.log()).algorithm, "Ring");
    log << "NCCL INFO AllReduce: 9999999 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..2}\n" << std::flush;
    EXPECT_EQ(usage_of(capture.log()).algorithm, "Tree");
  }
  EXPECT_EQ(std::getenv("NCCL_DEBUG"), nullptr);
  EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
  EXPECT_STREQ(std::getenv("NCCL_DEBUG_SUBSYS"), "COLL");
}

TEST(NcclLogCapture, LeavesTheUsersChoiceAlone) {
  ScopedEnvironment environment;
  environment.set("NCCL_DEBUG", "WARN");
  environment.set("NCCL_DEBUG_FILE", std::nullopt);
  const NcclLogCapture capture;
  EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "WARN");
  EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
  EXPECT_EQ(usage_of(capture.log()).algorithm, "unknown");
}

TEST(NcclEnvironment, HoldsNcclVariablesOnly) {
  ScopedEnvironment environment;
  environment.set("NCCL_P2P_LEVEL", "LOC=x");
  environment.set("NOT_NCCL_P2P_LEVEL", "1");
  environment.set("NCCL_VERSION", "2.28.3-1");
  const auto variables = nccl_environment();
  EXPECT_EQ(variables.at("NCCL_P2P_LEVEL"), "LOC=x");
  EXPECT_EQ(variables.count("NCCL_VERSION"), 0u);
  for (const auto& [name, value] : variables) EXPECT_EQ(name.rfind("NCCL_", 0), 0u) << name;
}

}  // namespace
}  // namespace ddptrain
