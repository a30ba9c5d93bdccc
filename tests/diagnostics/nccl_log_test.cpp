#include "runtime/diagnostics/nccl_log.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "runtime/core/process/scoped_environment.h"
#include "runtime/diagnostics/nccl_debug.h"
#include "runtime/diagnostics/nccl_log_capture.h"

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

TEST(NcclLog, VersionsBehindMarksOfLaunchers) {
  const auto version = [](const std::string& text) { return usage_in(text + "\n").version; };
  EXPECT_EQ(version("[1,0]<stdout>:NCCL version 2.9.9+cuda11.2"), "2.9.9");
  EXPECT_EQ(version("0: NCCL version 2.18.3+cuda12.1"), "2.18.3");
  EXPECT_EQ(version("(worker pid=17) NCCL version 2.27.5+cuda12.9"), "2.27.5");
  EXPECT_EQ(version("built with NCCL version 2.14.3"), "unknown");
}

TEST(NcclLog, OfTwoChoicesForOneSizeTheFirstCounts) {
  const std::string first = "NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..3}\n";
  const std::string second = "NCCL INFO AllReduce: 1048576 Bytes -> Algo TREE proto LL128 channel{Lo..Hi}={0..1}\n";
  EXPECT_EQ(told(first + second), "unknown Ring Simple unknown 4");
  EXPECT_EQ(told(second + first), "unknown Tree LL128 unknown 2");
}

TEST(NcclLog, TransportsAreThoseOfTheFirstCommunicator) {
  const auto transport = [](const std::string& text) { return usage_in(text).transport; };
  const std::string first = "n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 4 nNodes 2 localRanks 2 localRank 0 MNNVL 0\n";
  const std::string second =
      "n1:1:1 [0] NCCL INFO comm 0x2 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n";
  const std::string near = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n";
  const std::string far = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n";
  EXPECT_EQ(transport(first + near + second + far), "P2P/CUMEM");
  EXPECT_EQ(transport(first + second + near), "P2P/CUMEM");  // no line says another transport
  const std::string near_again = "n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] via P2P/CUMEM\n";
  EXPECT_EQ(transport(first + second + near_again + far), "unknown");
  // The processes of a job, and one that is in another communicator.
  const std::string other = "n2:2:2 [0] NCCL INFO comm 0x3 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n";
  const std::string of_other = "n2:2:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n";
  EXPECT_EQ(transport(first + near + other + of_other), "P2P/CUMEM");
  // Two GPUs of one process are in one communicator.
  const std::string of_two =
      "h:1:2 [0] NCCL INFO ncclCommInitAll comm 0xa rank 0 nranks 2 cudaDev 0 busId 10 commId 0x7 - Init START\n"
      "h:1:3 [1] NCCL INFO ncclCommInitAll comm 0xb rank 1 nranks 2 cudaDev 1 busId 20 commId 0x7 - Init START\n"
      "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer\n"
      "h:1:3 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via SHM/direct/direct\n";
  EXPECT_EQ(transport(of_two), "P2P/direct pointer+SHM");
  EXPECT_EQ(parse(of_two).ranks, 2);
}

TEST(NcclLog, LinesThatTwoRanksWroteTogether) {
  const NcclUsage usage = usage_of(recorded("two_ranks_in_a_line_made_up.log"));
  EXPECT_EQ(usage.transport, "P2P/CUMEM");
}

using Variables = std::map<std::string, std::string>;

/// Level, subsystems and "hides" if lines of TUNING are hidden.
std::string requested(const Variables& variables) {
  const NcclRequest request = nccl_request(nccl_debug_in(variables));
  return fmt::format("{} {}{}", request.level, request.subsystems, request.adds_tuning ? " hides" : "");
}

TEST(NcclDebug, NcclIsAskedForWhatTheUserAndTheRunNeed) {
  const std::string ours = "INFO INIT,ENV,GRAPH,TUNING,NET";
  EXPECT_EQ(requested({}), ours);
  EXPECT_EQ(requested({{"NCCL_DEBUG", "nonsense"}}), ours);
  EXPECT_EQ(requested({{"NCCL_DEBUG", "VERSION"}}), ours);
  EXPECT_EQ(requested({{"NCCL_DEBUG", "warn"}, {"NCCL_DEBUG_SUBSYS", "COLL"}}), ours);
  EXPECT_EQ(requested({{"NCCL_DEBUG", "info"}}), "INFO INIT,BOOTSTRAP,ENV,TUNING hides");
  EXPECT_EQ(requested({{"NCCL_DEBUG", "Trace"}, {"NCCL_DEBUG_SUBSYS", "ALL"}}), "TRACE ALL");
  const auto with = [](const std::string& subsystems) {
    return requested({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", subsystems}});
  };
  EXPECT_EQ(with("init,tuning"), "INFO init,tuning");
  EXPECT_EQ(with("NET,,COLL"), "INFO NET,COLL,TUNING hides");
  EXPECT_EQ(with("^NET"), "INFO ^NET");
  EXPECT_EQ(with("^NET,TUNING"), "INFO ^NET hides");
  EXPECT_EQ(with("^tuning"), "INFO ALL hides");
  EXPECT_EQ(with("^ALL"), "INFO TUNING hides");
  EXPECT_EQ(with(""), "INFO TUNING hides");
}

TEST(NcclDebug, FilesOfVariablesCountAsInNccl) {
  const std::filesystem::path folder = testing::TempDir();
  std::ofstream(folder / "nccl.conf") << "# NCCL_DEBUG_FILE=no\nNCCL_DEBUG=INFO\nNCCL_DEBUG_SUBSYS=NET\nno variable\n";
  std::ofstream(folder / "etc.conf") << "NCCL_DEBUG=WARN\nNCCL_DEBUG_FILE=log.%h\n";
  const std::vector<std::filesystem::path> files = {folder / "nccl.conf", folder / "none.conf", folder / "etc.conf"};
  const NcclDebug debug = nccl_debug_in(with_conf_files({{"NCCL_DEBUG_SUBSYS", "COLL"}}, files));
  EXPECT_EQ(debug.level, NcclDebug::Level::all);
  EXPECT_EQ(debug.subsystems, "COLL");
  EXPECT_EQ(debug.file, "log.%h");
  EXPECT_EQ(expanded_debug_file("a.%h.%p%%.%x%", "n7", 12), "a.n7.12%.%x%");
}

constexpr const char* kMixed = R"(h:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
h:1:1 [0] NCCL INFO Using network IB
h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM

[2026-11-28 06:00:00] h:1:1 [0] net.cc:3 NCCL WARN no such device
h:1:1 [0] NCCL INFO   Algorithm   |   Tree   |   Ring   |
h:1:1 [0] NCCL INFO  AllReduce | 1.0/2.0 |
h:1:1 [0] NCCL INFO AllReduce: 9999999 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..2}
)";

/// Of kMixed.
std::string seen(const Variables& variables) {
  NcclLogView view(nccl_debug_in(variables));
  std::istringstream log(kMixed);
  std::string text;
  for (std::string line; std::getline(log, line);) {
    if (const auto shown = view.shown(line)) text += *shown + "\n";
  }
  return text;
}

TEST(NcclDebug, TheUserSeesWhatNcclWouldHaveWritten) {
  const std::string mixed = kMixed;
  const std::string warning = "\n[2026-11-28 06:00:00] h:1:1 [0] net.cc:3 NCCL WARN no such device\n";
  EXPECT_EQ(seen({}), "");
  EXPECT_EQ(seen({{"NCCL_DEBUG", "VERSION"}}), "NCCL version 2.28.9+cuda13.0\n");
  EXPECT_EQ(seen({{"NCCL_DEBUG", "WARN"}}), "NCCL version 2.28.9+cuda13.0\n" + warning);
  EXPECT_EQ(seen({{"NCCL_DEBUG", "WARN"}, {"NCCL_WARN_ENABLE_DEBUG_INFO", "1"}}),
            "NCCL version 2.28.9+cuda13.0\n" + mixed.substr(mixed.find(warning)));
  EXPECT_EQ(seen({{"NCCL_DEBUG", "INFO"}, {"NCCL_DEBUG_SUBSYS", "ALL"}}), kMixed);
  EXPECT_EQ(seen({{"NCCL_DEBUG", "INFO"}}), mixed.substr(0, mixed.find("h:1:1 [0] NCCL INFO   Algorithm")));
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Writes as NCCL does.
void log_as_nccl(const std::string& text) {
  std::ofstream log(std::getenv("NCCL_DEBUG_FILE"));
  ASSERT_TRUE(log);
  log << text << std::flush;
}

class NcclLogCaptureTest : public testing::Test {
 protected:
  NcclLogCaptureTest() {
    for (const char* name : {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_WARN_ENABLE_DEBUG_INFO"}) {
      environment_.set(name, std::nullopt);
    }
    environment_.set("NCCL_CONF_FILE", "/no/such/file");
  }

  ScopedEnvironment environment_;
  std::filesystem::path folder_ = testing::TempDir();
};

TEST_F(NcclLogCaptureTest, ReadsWhatIsWrittenAndLeavesNothingBehind) {
  environment_.set("NCCL_DEBUG_SUBSYS", "COLL");
  {
    const NcclLogCapture capture;
    EXPECT_STREQ(std::getenv("NCCL_DEBUG"), "INFO");
    std::ofstream log(std::getenv("NCCL_DEBUG_FILE"));
    ASSERT_TRUE(log);
    log << kRing << std::flush;
    EXPECT_EQ(usage_of(capture.log()).algorithm, "Ring");
    log << "NCCL INFO AllReduce: 9999999 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..2}\n" << std::flush;
    EXPECT_EQ(usage_of(capture.log()).algorithm, "Tree");
    EXPECT_EQ(capture.text().substr(0, 10), std::string(kRing).substr(0, 10));
  }
  EXPECT_EQ(std::getenv("NCCL_DEBUG"), nullptr);
  EXPECT_EQ(std::getenv("NCCL_DEBUG_FILE"), nullptr);
  EXPECT_STREQ(std::getenv("NCCL_DEBUG_SUBSYS"), "COLL");
}

TEST_F(NcclLogCaptureTest, TheUsersLogIsReadAndCopiedToItsFile) {
  environment_.set("NCCL_DEBUG", "INFO");
  environment_.set("NCCL_DEBUG_FILE", (folder_ / "nccl.%p.log").string());
  const std::filesystem::path copy = folder_ / fmt::format("nccl.{}.log", getpid());
  const std::string ring = kRing;
  {
    const NcclLogCapture capture;
    EXPECT_STREQ(std::getenv("NCCL_DEBUG_SUBSYS"), "INIT,BOOTSTRAP,ENV,TUNING");
    log_as_nccl(ring + "h:1:1 [0] NCCL INFO a line that is c");
    EXPECT_EQ(usage_of(capture.log()).algorithm, "Ring");
    EXPECT_EQ(usage_of(capture.log()).transport, "P2P/CUMEM");
  }
  const std::string seen = content_of(copy);
  EXPECT_EQ(seen.find("Bytes -> Algo"), std::string::npos) << seen;
  EXPECT_NE(seen.find("via P2P/CUMEM/read\n"), std::string::npos) << seen;
  EXPECT_TRUE(seen.ends_with("a line that is c\n")) << seen;
  EXPECT_TRUE(seen.starts_with(ring.substr(0, ring.find('\n') + 1))) << seen;
}

/// A run that hangs or is ended at once.
TEST_F(NcclLogCaptureTest, TheLogIsSeenWhileTheProgramRuns) {
  environment_.set("NCCL_DEBUG", "INFO");
  environment_.set("NCCL_DEBUG_FILE", (folder_ / "live.log").string());
  const NcclLogCapture capture;
  log_as_nccl("h:1:1 [0] NCCL INFO Using network Socket\n");
  while (content_of(folder_ / "live.log").empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(content_of(folder_ / "live.log"), "h:1:1 [0] NCCL INFO Using network Socket\n");
}

TEST_F(NcclLogCaptureTest, StandardOutputGetsTheLogUnlessAFileIsAskedFor) {
  environment_.set("NCCL_DEBUG", "WARN");
  testing::internal::CaptureStdout();
  {
    const NcclLogCapture capture;
    log_as_nccl(kMixed);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), seen({{"NCCL_DEBUG", "WARN"}}));
  environment_.set("NCCL_DEBUG_FILE", (folder_ / "no folder/nccl.log").string());
  testing::internal::CaptureStdout();
  {
    const NcclLogCapture capture;
    log_as_nccl(kMixed);
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), seen({{"NCCL_DEBUG", "WARN"}}));
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
