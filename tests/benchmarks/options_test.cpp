#include "benchmarks/ddpbench/options.h"

#include <gtest/gtest.h>

#include <sstream>

#include "runtime/core/error.h"
#include "tests/support/says.h"

namespace ddptrain::bench {
namespace {

CommandLine parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "ddpbench");
  return parse_command_line(static_cast<int>(arguments.size()), arguments.data());
}

TEST(Options, AllreduceTakesTheFlagsOfNcclTests) {
  const CommandLine line =
      parse({"allreduce", "-b", "32K",  "-e",   "16G",        "-f",     "4",      "-n",       "7",   "-w",
             "1",         "-d", "bf16", "--op", "all-gather", "--json", "x.json", "--device", "cpu", "--symmetric"});
  const auto& options = std::get<AllreduceOptions>(line.task);
  EXPECT_EQ(options.begin, 32768u);
  EXPECT_EQ(options.end, 17179869184u);
  EXPECT_EQ(options.factor, 4u);
  EXPECT_EQ(options.iterations, 7);
  EXPECT_EQ(options.warmup, 1);
  EXPECT_EQ(options.dtype, DType::bf16);
  EXPECT_EQ(options.collective, Collective::all_gather);
  EXPECT_TRUE(options.symmetric);
  EXPECT_TRUE(options.check);
  EXPECT_EQ(options.graph_launches, 0);
  EXPECT_EQ(line.common.json, "x.json");
  EXPECT_EQ(line.common.device, "cpu");
}

TEST(Options, GraphMayHaveANumber) {
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"allreduce", "-G", "10"}).task).graph_launches, 10);
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"allreduce", "--graph=3"}).task).graph_launches, 3);
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"allreduce", "--graph=0"}).task).graph_launches, 0);
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"allreduce", "--device=cuda"}).task).graph_launches, 0);
  EXPECT_FALSE(std::get<AllreduceOptions>(parse({"allreduce", "--no-check"}).task).check);
}

TEST(Options, MinSecondsAreOfAllButP2p) {
  EXPECT_EQ(parse({"memory"}).common.min_seconds, 0.0);
  for (const char* name : {"allreduce", "split", "overlap", "gemm", "memory"}) {
    EXPECT_EQ(parse({name, "--min-seconds", "60"}).common.min_seconds, 60.0) << name;
  }
  EXPECT_THROW(parse({"p2p", "--min-seconds", "60"}), UsageError);
  EXPECT_THROW(parse({"gemm", "--min-seconds", "-1"}), UsageError);
}

TEST(Options, StepLeavesItsArgumentsToDdptrain) {
  const CommandLine line = parse({"step", "--batch", "64", "--json", "s.json", "--graph", "off", "--data=synthetic"});
  EXPECT_EQ(std::get<StepOptions>(line.task).arguments,
            (std::vector<std::string>{"--batch", "64", "--graph", "off", "--data=synthetic"}));
  EXPECT_EQ(line.common.json, "s.json");
}

std::string message_of(const std::vector<const char*>& arguments) {
  return error_message([&] { parse(arguments); });
}

TEST(Options, UnknownNamesAreToldWithTheirNeighbours) {
  const std::string help = " (ddpbench --help and ddpbench SUBCOMMAND --help list the flags)";
  EXPECT_EQ(message_of({"gemms"}), "unexpected word gemms" + help);
  EXPECT_EQ(message_of({"gemm", "--jsn", "x"}), "unknown flag --jsn, did you mean --json?" + help);
  EXPECT_EQ(message_of({"gemm", "--json", ""}), "--json '': the path is empty. Give one, or leave the flag out.");
}

TEST(Options, MistakesAreUsageErrors) {
  std::istringstream lines(
      "; allreduces; allreduce --foo; allreduce -b; allreduce -b many; allreduce -f 1; allreduce -n 0; "
      "allreduce -n 2.5; allreduce -n 1e99; allreduce --op reduce; allreduce --dtype int8; allreduce --device gpu; "
      "allreduce --graph=-3; allreduce --graph=many; allreduce split; split --pieces 0; overlap --buckets 1M,,x; "
      "gemm --precision fp8; gemm --seconds 0; gemm --cube -8; memory --bytes -1; p2p --repeats nan");
  for (std::string line; std::getline(lines, line, ';');) {
    const std::vector<std::string> words = words_of(line);
    std::vector<const char*> arguments;
    for (const std::string& word : words) arguments.push_back(word.c_str());
    EXPECT_THROW(parse(arguments), UsageError) << line;
  }
}

}  // namespace
}  // namespace ddptrain::bench
