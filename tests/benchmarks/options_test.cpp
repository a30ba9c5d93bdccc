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

AllreduceOptions allreduce(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "allreduce");
  return std::get<AllreduceOptions>(parse(std::move(arguments)).task);
}

TEST(Options, ACommandOfNcclTestsMeansTheSame) {
  const AllreduceOptions options = allreduce({"-b", "32k", "-e", "16G", "-f", "2", "-g", "4"});
  EXPECT_EQ(options.begin, 32768u);
  EXPECT_EQ(options.end, 17179869184u);
  EXPECT_EQ(options.gpus_per_thread, 4);
  EXPECT_EQ(options.typed, "allreduce -b 32k -e 16G -f 2");
  EXPECT_EQ(allreduce({"-t", "2", "-g4", "-b", "8", "--ngpus=3"}).typed, "allreduce -b 8");
  EXPECT_EQ(allreduce({"--minbytes", "1m", "--maxbytes=2M"}).end, 2097152u);
  EXPECT_EQ(allreduce({"-i", "1m"}).step, 1048576u);
  EXPECT_EQ(allreduce({"--iters", "7", "--warmup_iters", "3", "--cudagraph", "2"}).iterations, 7);
  EXPECT_EQ(allreduce({"-d", "bfloat16"}).dtype, DType::bf16);
  EXPECT_EQ(allreduce({"-r", "3"}).root, 3);
  EXPECT_FALSE(allreduce({"-c", "0"}).check);
  EXPECT_TRUE(allreduce({"-c", "1"}).check);
  EXPECT_TRUE(allreduce({"-R", "2"}).symmetric);
  EXPECT_FALSE(allreduce({"-R", "0"}).symmetric);
  EXPECT_EQ(allreduce({"-o", "sum"}).collective, Collective::all_reduce);
  allreduce({"-p", "1", "-m", "1", "-z", "0", "-y", "0", "-C", "0", "-a", "1", "-N", "1", "-T", "0", "-S", "0"});
}

TEST(Options, ACollectiveIsASubcommand) {
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"broadcast", "-b", "1k"}).task).collective, Collective::broadcast);
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"alltoall_perf"}).task).collective, Collective::all_to_all);
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"sendrecv", "-b", "1k"}).task).begin, 1024u);
  EXPECT_EQ(std::get<AllreduceOptions>(parse({"all_reduce_perf", "-g", "1"}).task).collective, Collective::all_reduce);
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

TEST(Options, FlagsOfNcclTestsWithAnotherMeaningGetAHint) {
  EXPECT_EQ(message_of({"allreduce", "-o", "max"}), "--op max: ddpbench reduces by sum only. Leave --op out.");
  EXPECT_CONTAINS(message_of({"allreduce", "-d", "half"}), "--dtype half: give float or bf16");
  EXPECT_CONTAINS(message_of({"allreduce", "-m", "4"}), "ddpbench split");
  EXPECT_CONTAINS(message_of({"allreduce", "-N", "2"}), "--min-seconds");
  EXPECT_CONTAINS(message_of({"allreduce", "-z", "1"}), "queued");
  EXPECT_CONTAINS(message_of({"allreduce", "-a", "3"}), "mean");
  EXPECT_CONTAINS(message_of({"allreduce", "-T", "60"}), "timeout SECONDS");
  EXPECT_CONTAINS(message_of({"allreduce", "-R", "1"}), "-R,--local_register 1");
  EXPECT_CONTAINS(message_of({"allreduce", "-J", "x.json"}), "--json FILE");
  EXPECT_CONTAINS(message_of({"allreduce", "-c", "5"}), "--check 5");
}

TEST(Options, HelpHasNoHiddenFlags) {
  const std::string help = parse({"allreduce", "--help"}).print.value();
  EXPECT_NE(help.find("--stepbytes"), std::string::npos);
  EXPECT_EQ(help.find("--parallel_init"), std::string::npos);
}

TEST(Options, TheHelpListsCollectives) {
  const std::string help = parse({"--help"}).print.value();
  for (const Collective collective : all_collectives()) EXPECT_CONTAINS(help, std::string(" ") + name_of(collective));
  EXPECT_EQ(parse({"overlap", "--help"}).print.value().find("all-to-all"), std::string::npos);
}

TEST(Options, MistakesAreUsageErrors) {
  std::istringstream lines(
      "; allreduces; allreduce --foo; allreduce -b; allreduce -b many; allreduce -f 1; allreduce -n 0; "
      "allreduce -n 2.5; allreduce -n 1e99; allreduce --op gather; gather; allreduce -g 0; allreduce -r -1; allreduce "
      "-i x; allreduce --dtype int8; allreduce --device gpu; "
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
