#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/launch/process.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

using nlohmann::json;

Outcome ddptopo(const std::string& arguments, const std::string& environment = "") {
  return run_command(fmt::format("{} timeout 600 {} {}", environment, DDPTOPO_PROGRAM, arguments));
}

Outcome ddptopo_on(int ranks, const std::string& arguments, const std::string& environment = "") {
  return run_command(
      fmt::format("{} timeout 600 {} -np {} {} {}", environment, DDP_MPIRUN, ranks, DDPTOPO_PROGRAM, arguments));
}

std::string log_file(const std::string& name) {
  return fmt::format("{}/tests/diagnostics/logs/{}", DDP_SOURCE_DIR, name);
}

TEST(Ddptopo, JsonAloneOnStandardOutput) {
  const Outcome outcome = ddptopo("--json -");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const json all = json::parse(outcome.output);
  ASSERT_EQ(all.at("hosts").size(), 1u);
  const json& host = all.at("hosts").at(0);
  const std::size_t gpus = host.at("gpus").size();
  const std::size_t rows = gpus + host.at("nics").size();
  ASSERT_EQ(host.at("links").size(), rows);
  for (std::size_t i = 0; i < rows; ++i) EXPECT_EQ(host.at("links").at(i).at(i), "X");
  EXPECT_EQ(host.at("p2p").size(), gpus);
  EXPECT_EQ(host.at("nearest_pair").is_null(), gpus < 2) << host.dump();
  EXPECT_TRUE(all.at("nccl").is_null());
  EXPECT_EQ(ddptopo("", "WORLD_SIZE=4 RANK=0 LOCAL_RANK=0").exit_code, 0) << "a host is described by one process";
}

TEST(Ddptopo, OneMatrixForEachHost) {
  const std::string path = temporary("hosts.json");
  const Outcome outcome = ddptopo_on(2, "--json " + path);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(outcome.count("Host "), 1) << outcome.output;
  EXPECT_EQ(json::parse(content_of(path)).at("hosts").size(), 1u);
  EXPECT_EQ(ddptopo("--json " + path).exit_code, 0) << "it may replace its own file";
}

TEST(Ddptopo, ParsesALog) {
  const std::string path = temporary("log.json");
  std::filesystem::remove(path);  // of an earlier run
  const Outcome outcome = ddptopo("--parse " + log_file("a100_2x2_trees.log") + " --json " + path);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(outcome.says("0 (1, 2 (3))")) << outcome.output;
  const json all = json::parse(content_of(path));
  EXPECT_TRUE(all.at("hosts").empty());
  EXPECT_EQ(all.at("nccl").at("ranks"), 4);
  EXPECT_EQ(ddptopo("--parse " + log_file("a100_2x2_trees.log") + " --json " + path).exit_code, 0) << "twice the same";
  std::ofstream(path) << R"({"hosts": ["of another program"]})";
  const Outcome foreign = ddptopo("--parse " + log_file("a100_2x2_trees.log") + " --json " + path);
  EXPECT_EQ(foreign.exit_code, 2) << foreign.output;
  EXPECT_EQ(content_of(path), R"({"hosts": ["of another program"]})");
}

TEST(Ddptopo, ParsesALogFromAPipe) {
  const std::string log = log_file("a100_2x2_trees.log");
  for (const char* path : {"/dev/stdin", "-"}) {
    const Outcome outcome = run_command(fmt::format("cat {} | timeout 600 {} --parse {}", log, DDPTOPO_PROGRAM, path));
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_TRUE(outcome.says("0 (1, 2 (3))")) << outcome.output;
  }
  const std::string pipe = temporary("log.pipe");
  std::filesystem::remove(pipe);
  const Outcome named =
      run_command(fmt::format("mkfifo {0}; cat {1} > {0} & timeout 600 {2} --parse {0}", pipe, log, DDPTOPO_PROGRAM));
  EXPECT_TRUE(named.says("0 (1, 2 (3))")) << named.output;
  const Outcome nobody = ddptopo("--parse " + pipe);
  EXPECT_EQ(nobody.exit_code, 2);
  EXPECT_TRUE(nobody.says("no program writes into this pipe")) << nobody.output;
}

/// NCCL_DEBUG_FILE=%h.%p gives each process a file. Some end in the middle of a line.
TEST(Ddptopo, ParsesTheLogsOfAllProcessesTogether) {
  const std::string folder = temporary("logs");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/more");
  for (int rank = 0; rank < 4; ++rank) {
    std::ofstream log(fmt::format("{}/node{}.{}", folder, rank / 2, 100 + rank));
    const std::string prefix = fmt::format("node{}:{}:{} [{}] NCCL INFO ", rank / 2, 100 + rank, 200 + rank, rank);
    const char* trees[] = {"1/2/-1->0->-1", "-1/-1/-1->1->0", "3/-1/-1->2->0", "-1/-1/-1->3->2"};
    log << prefix << "comm 0x1 rank " << rank << " nRanks 4 nNodes 2 localRanks 2 localRank " << rank % 2
        << " MNNVL 0\n";
    log << prefix << "Trees [0] " << trees[rank] << "\n" << prefix << "Channel 00/0 : 1[1] -";
  }
  std::ofstream(folder + "/readme.txt") << "these are logs\n";
  std::ofstream(folder + "/core", std::ios::binary).write("\0NCCL INFO comm 0x1 rank 7 nRanks 9\n", 36);
  const std::string files = fmt::format("{0}/node0.100 {0}/node0.101 {0}/node1.102 {0}/node1.103", folder);
  const std::string two_flags = fmt::format("{0}/node0.100 {0}/node0.101 --parse {0}/node1.102 {0}/node1.103", folder);
  for (const std::string& paths : {folder, files, two_flags}) {
    const Outcome outcome = ddptopo("--parse " + paths + " --json -");
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const json nccl = json::parse(outcome.output).at("nccl");
    EXPECT_EQ(nccl.at("ranks"), 4);
    EXPECT_EQ(nccl.at("trees").at(0).size(), 4u);
    EXPECT_EQ(nccl.at("ranks_by_node").size(), 2u);
    EXPECT_EQ(nccl.at("contradictions"), 0);
    EXPECT_EQ(nccl.at("unreadable_lines"), 1) << "the cut ends are not joined to other lines";
    EXPECT_TRUE(ddptopo("--parse " + paths).says("0 (1, 2 (3))"));
  }
  const Outcome nothing = ddptopo("--parse " + folder + "/more");
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(nothing.says("more: no file of this folder is a log of NCCL")) << nothing.output;
}

TEST(Ddptopo, AFullDiskIsAnError) {
  const std::string parse = "--parse " + log_file("a100_2x2_trees.log");
  EXPECT_EQ(ddptopo(parse + " --json - > /dev/full").exit_code, 1);
  EXPECT_EQ(ddptopo("--version > /dev/full").exit_code, 1);
  EXPECT_EQ(ddptopo(parse + " --json /dev/full").exit_code, 1);
}

TEST(Ddptopo, ADiskThatIsFullLeavesNothingBehind) {
  const std::string folder = temporary("full");
  std::filesystem::create_directories(folder);
  // JSON of 9 kB, of which the log and its report are less than 5.
  const std::string arguments = fmt::format("--parse {} --json {}/x.json", log_file("a100_p2p_level_1.log"), folder);
  // MPICH's UCX would write files of shared memory.
  const Outcome outcome = run_command(
      fmt::format("UCX_TLS=self bash -c \"trap '' XFSZ; ulimit -f 6; timeout 600 {} {}\"", DDPTOPO_PROGRAM, arguments));
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_TRUE(outcome.says("x.json: cannot be written")) << outcome.output;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(Ddptopo, LogsThatAreNoText) {
  const std::string path = temporary("noise.log");
  std::string noise = "NCCL INFO NCCL_X set by environment to \xff\xfe\x01\n";
  for (int i = 0; i < 100000; ++i) noise += static_cast<char>(i * 7919 % 251);
  std::ofstream(path) << noise;
  const Outcome outcome = ddptopo("--parse " + path + " --json -");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(json::parse(outcome.output).at("nccl").at("environment").contains("NCCL_X"));
  for (const char* text : {"", "\n\n", "Epoch 1/4\nloss 0.3  accuracy 0.9\n", "[rank 0] INFO Channel 00 ready\n"}) {
    std::ofstream(path) << text;
    const Outcome foreign = ddptopo("--parse " + path + " --json " + temporary("noise.json"));
    EXPECT_EQ(foreign.exit_code, 2) << text;
    EXPECT_EQ(foreign.count("ddptopo: --parse " + path + ": nothing of NCCL is in this log"), 1) << foreign.output;
    EXPECT_FALSE(std::filesystem::exists(temporary("noise.json"))) << text;
  }
}

TEST(Ddptopo, MistakesAreOneMessageAndExitCode2) {
  for (const auto& [arguments, message] :
       {std::pair{"--jsn x", "unknown flag --jsn, did you mean --json? (ddptopo"},
        {"--png ''", "--png '': the path is empty"},
        {"--parse /nonexistent.log", "--parse /nonexistent.log: the log cannot be read: No such file"},
        {"--nccl --parse /tmp", "--nccl and --parse"},
        {"--nccl", "--nccl: "},
        {"--json /nonexistent/x.json", "--json /nonexistent/x.json"}}) {
    const Outcome outcome = ddptopo_on(2, arguments, "CUDA_VISIBLE_DEVICES=");
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_EQ(outcome.count(std::string("ddptopo: ") + message), 1) << outcome.output;
  }
}

TEST(DdptopoDrawing, WithoutMatplotlibSaysWhatToInstall) {
  const std::string fake = temporary("modules");
  std::filesystem::create_directories(fake);
  std::ofstream(fake + "/matplotlib.py") << "raise ImportError\n";
  const Outcome outcome = ddptopo("--parse " + log_file("a100_2x2_trees.log") + " --svg " + temporary("no.svg"),
                                  "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=" + fake);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_EQ(outcome.count("ddptopo: --svg, --png"), 1) << outcome.output;
  EXPECT_TRUE(outcome.says("apt-get install python3-matplotlib")) << outcome.output;
}

TEST(DdptopoDrawing, AFullDiskIsAnError) {
  const Outcome outcome = ddptopo("--parse " + log_file("a100_4x1_trees.log") + " --svg /dev/full");
  if (outcome.says("which is not here")) GTEST_SKIP() << "no matplotlib here";
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_EQ(outcome.count("--svg, --png: /dev/full: cannot be written: No space left on device"), 1) << outcome.output;
}

TEST(DdptopoDrawing, SvgHasTheRanks) {
  const std::string svg = temporary("trees.svg");
  const std::string png = temporary("trees.png");
  std::filesystem::remove(svg);
  const Outcome outcome =
      ddptopo(fmt::format("--parse {} --svg {} --png {}", log_file("a100_4x1_trees.log"), svg, png));
  if (outcome.says("which is not here")) GTEST_SKIP() << "no matplotlib here";
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* label : {">0<", ">1<", ">2<", ">3<", "channel 0"}) {
    EXPECT_CONTAINS(content_of(svg), label);
  }
  EXPECT_EQ(content_of(png).substr(1, 3), "PNG");
  ASSERT_EQ(ddptopo(fmt::format("--parse {} --png {}", log_file("a100_4x1_trees.log"), svg)).exit_code, 0);
  EXPECT_CONTAINS(content_of(svg), "<svg") << "the name decides, not the flag";
  const Outcome unwritable = ddptopo("--parse " + log_file("a100_4x1_trees.log") + " --svg /nonexistent/x.svg");
  EXPECT_EQ(unwritable.exit_code, 2);
  EXPECT_EQ(unwritable.count("x.svg"), 1) << unwritable.output;
  EXPECT_TRUE(unwritable.says("ddptopo: --svg, --png: /nonexistent/x.svg: cannot be written: No such file"))
      << unwritable.output;
  std::ofstream(temporary("bare.log")) << "NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 1\n";
  const Outcome bare = ddptopo("--parse " + temporary("bare.log") + " --svg " + svg);
  EXPECT_EQ(bare.exit_code, 2);
  EXPECT_TRUE(bare.says("ddptopo: --svg, --png: there is nothing to draw")) << bare.output;
}

}  // namespace
}  // namespace ddptrain
