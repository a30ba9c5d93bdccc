#include "benchmarks/ddpbench/options.h"

#include <CLI/CLI.hpp>
#include <functional>
#include <utility>

#include "benchmarks/ddpbench/sizes.h"
#include "launch/app/flags/cli.h"
#include "launch/app/flags/options.h"
#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

void require(bool condition, const std::string& flag, double value, const char* what) {
  if (!condition) usage_error("{} {}: give {}", flag, value, what);
}

void add_size(CLI::App& app, const std::string& flag, std::uint64_t& value, const std::string& help) {
  app.add_option_function<std::string>(
         flag, [flag, &value](const std::string& text) { value = parse_size(flag, text); }, help)
      ->type_name("SIZE");
}

template <class T>
void add_number(CLI::App& app, const std::string& flag, T& value, double least, double most, const std::string& help) {
  app.add_option_function<double>(
         flag,
         [flag, &value, least, most](const double& number) {
           const bool fits = number >= least && number <= most;
           require(fits && static_cast<double>(static_cast<T>(number)) == number, flag, number,
                   fmt::format("a number from {} to {}", least, most).c_str());
           value = static_cast<T>(number);
         },
         help)
      ->type_name("N");
}

void add_dtype(CLI::App& app, DType& dtype) {
  app.add_option_function<std::string>(
         "-d,--dtype",
         [&dtype](const std::string& name) {
           if (name != "float" && name != "bf16") usage_error("--dtype {}: give float or bf16", name);
           dtype = name == "float" ? DType::f32 : DType::bf16;
         },
         "Type of the elements; with MPI float only")
      ->type_name("float|bf16");
}

void add_common(CLI::App& app, CommonOptions& o) {
  app.add_option_function<std::string>(
         "--device",
         [&o](const std::string& name) {
           if (name != "auto" && name != "cpu" && name != "cuda") {
             usage_error("--device {}: give auto, cpu or cuda", name);
           }
           o.device = name;
         },
         "auto: GPUs if the machine has any, else CPUs")
      ->type_name("auto|cpu|cuda");
  app.add_flag("--share-gpu", o.share_gpu, "Allow more ranks than GPUs");
  add_number(app, "--threads", o.threads, 1, 1024, "CPU threads per rank (1)");
  app.add_option("--json", o.json, "Write the result as JSON")->type_name("FILE");
}

void add_min_seconds(CLI::App& app, CommonOptions& o) {
  app.add_option_function<double>(
         "--min-seconds",
         [&o](const double& value) {
           require(value >= 0.0 && value <= 1e6, "--min-seconds", value, "0 to 10^6");
           o.min_seconds = value;
         },
         "Shortest time of each measurement, in seconds (0)")
      ->type_name("S");
}

void add_p2p(CLI::App& app, P2pOptions& o) {
  add_size(app, "--bytes", o.bytes, "Size of a copy (160MB)");
  add_number(app, "--repeats", o.repeats, 1, 1e6, "Copies per measurement (5)");
  add_number(app, "--latency-repeats", o.latency_repeats, 1, 1e6, "Copies of 16 bytes per latency measurement (100)");
}

void add_allreduce(CLI::App& app, AllreduceOptions& o) {
  app.add_option_function<std::string>(
         "--op", [&o](const std::string& name) { o.collective = parse_collective(name); },
         "Collective: all-reduce, reduce-scatter, all-gather or broadcast (all-reduce)")
      ->type_name("NAME");
  add_size(app, "-b,--begin", o.begin, "Smallest size (8)");
  add_size(app, "-e,--end", o.end, "Largest size (128M; on CPUs 8M)");
  add_number(app, "-f,--factor", o.factor, 2, 1e9, "Factor between sizes (2)");
  add_dtype(app, o.dtype);
  add_number(app, "-n,--iterations", o.iterations, 1, 1e6, "Collectives per measurement (20)");
  add_number(app, "-w,--warmup", o.warmup, 0, 1e6, "Warm-up collectives at the largest and the smallest size (5)");
  add_number(app, "-G,--graph", o.graph_launches, 0, 1e6,
             "Capture the iterations as a CUDA graph and launch it N times (0: no graph)");
  app.add_flag("--symmetric", o.symmetric, "Use NCCL symmetric memory (one node; NCCL_ALGO then has no effect)");
  app.add_flag("--algorithms", o.algorithms,
               "All-reduce by each of NCCL's algorithms and protocols in turn (NCCL 2.31 and newer)");
  app.add_flag("!--no-check", o.check, "Do not check the results");
}

void add_split(CLI::App& app, SplitOptions& o) {
  add_size(app, "--total", o.total, "Total size of the pieces (4GB; on CPUs 64MB)");
  add_number(app, "--pieces", o.pieces, 1, 1e6, "Largest number of pieces (1000)");
  add_dtype(app, o.dtype);
  add_number(app, "--rounds", o.rounds, 1, 1e6, "Rounds; the table shows the median (5)");
  app.add_flag("--symmetric", o.symmetric, "Use NCCL symmetric memory if possible");
}

void add_overlap(CLI::App& app, OverlapOptions& o) {
  add_number(app, "--layers", o.layers, 1, 10'000, "Layers of the model (24)");
  add_number(app, "--width", o.width, 8, 1e5, "Width of a layer (4096; on CPUs 256)");
  add_number(app, "--tokens", o.tokens, 1, 1e7, "Rows that a layer processes (8192; on CPUs 256)");
  app.add_option_function<std::vector<std::string>>(
         "--buckets",
         [&o](const std::vector<std::string>& texts) {
           for (const std::string& text : texts) o.buckets.push_back(parse_size("--buckets", text));
         },
         "Bucket sizes (powers of 4 up to all gradients)")
      ->delimiter(',')
      ->type_name("SIZE,...");
  add_number(app, "--rounds", o.rounds, 1, 1e6, "Rounds; the table shows the median (5)");
  app.add_flag("--symmetric", o.symmetric, "Use NCCL symmetric memory if possible");
  add_number(app, "--comm-ctas", o.comm_ctas, 0, 32,
             "Largest number of thread blocks of a collective (0: NCCL's choice)");
}

void add_gemm(CLI::App& app, GemmOptions& o) {
  app.add_option_function<std::string>(
         "--precision",
         [&o](const std::string& name) {
           if (name != "auto" && name != "fp32" && name != "tf32" && name != "bf16") {
             usage_error("--precision {}: give auto, fp32, tf32 or bf16", name);
           }
           o.precision = name;
         },
         "auto: bf16 on GPUs, fp32 on CPUs")
      ->type_name("auto|fp32|tf32|bf16");
  add_number(app, "--cube", o.cube, 8, 1e5, "Edge of the cubic matrix multiplication (8192; on CPUs 768)");
  add_number(app, "--tokens", o.tokens, 1, 1e7, "Rows of the GPT-2 matrix multiplications (32768; on CPUs 256)");
  add_number(app, "--width", o.width, 8, 1e5, "Width of the GPT-2: 768 for 124M, 1280 for 774M (768; on CPUs 256)");
  add_number(app, "--vocabulary", o.vocabulary, 8, 1e6,
             "Columns of the last matrix multiplication (50304; on CPUs 4096)");
  add_number(app, "--rounds", o.rounds, 1, 1e6, "Rounds; the table shows the median (5)");
  app.add_option_function<double>(
         "--seconds",
         [&o](const double& value) {
           require(value > 0.0 && value <= 60.0, "--seconds", value, "a time above 0 and up to 60");
           o.seconds = value;
         },
         "Seconds per round (0.05)")
      ->type_name("S");
}

void add_memory(CLI::App& app, MemoryOptions& o) {
  add_size(app, "--bytes", o.bytes, "Size of a copy (1GB; in host memory 256MB)");
  add_number(app, "--rounds", o.rounds, 1, 1e6, "Rounds; the table shows the median (5)");
}

void add_doctor(CLI::App& app, DoctorOptions& o) {
  app.add_option_function<double>(
         "--seconds",
         [&o](const double& value) {
           require(value > 0.0 && value <= 600.0, "--seconds", value, "a time above 0 and up to 600");
           o.seconds = value;
         },
         "Seconds of each measurement between neighbours (2)")
      ->type_name("S");
  app.add_option_function<double>(
         "--tolerance",
         [&o](const double& value) {
           require(value > 0.0 && value < 1.0, "--tolerance", value, "a share above 0 and below 1");
           o.tolerance = value;
         },
         "Report what is slower than this fraction of the usual rate (0.5)")
      ->type_name("SHARE");
  app.add_option("--data", o.data,
                 "Compare this file, or the files in this folder, across hosts by size and hash; may be repeated")
      ->type_name("PATH")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

/// The subcommands and the options that they fill.
struct Parser {
  CLI::App app{"Measures the parts of distributed training: [mpirun -np W] ddpbench SUBCOMMAND [FLAGS]", "ddpbench"};
  CommonOptions common;
  P2pOptions p2p;
  AllreduceOptions allreduce;
  SplitOptions split;
  OverlapOptions overlap;
  GemmOptions gemm;
  MemoryOptions memory;
  DoctorOptions doctor;
  std::vector<std::pair<CLI::App*, std::function<Task()>>> subcommands;

  Parser() {
    app.require_subcommand(1);
    app.set_version_flag("--version", "", "Print versions");
    app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    add("p2p", "Bandwidth and latency of copies between GPUs, and between host and GPU (one process, all GPUs)", p2p,
        add_p2p);
    add("allreduce", "Time and bandwidth of a collective by size, in the columns of nccl-tests", allreduce,
        add_allreduce);
    add("split", "One large all-reduce against many small ones", split, add_split);
    add("overlap", "A backward pass with and without overlapping all-reduces", overlap, add_overlap);
    add("gemm", "Rate of matrix multiplications", gemm, add_gemm);
    add("memory", "Rate of copies within memory", memory, add_memory);
    add("doctor", "Differences between hosts, rates of ranks, GPUs and the network between them, and which one is slow",
        doctor, add_doctor);
    CLI::App* step = app.add_subcommand("step", "Time of the parts of a training step; takes the flags of ddptrain");
    step->allow_extras();
    step->set_help_flag();
    step->add_option("--json", common.json, "Write the result as JSON")->type_name("FILE");
    subcommands.emplace_back(step, [step] { return StepOptions{step->remaining()}; });
  }

  template <class Options>
  void add(const char* name, const char* help, Options& options, void (*add_options)(CLI::App&, Options&)) {
    CLI::App* command = app.add_subcommand(name, help);
    add_options(*command, options);
    if (name != std::string("p2p")) add_min_seconds(*command, common);
    add_common(*command, common);
    subcommands.emplace_back(command, [&options] { return options; });
  }
};

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  Parser parser;
  CommandLine result;
  try {
    parse_flags(parser.app, argc, argv, "ddpbench --help and ddpbench SUBCOMMAND --help list");
  } catch (const CLI::CallForHelp&) {
    result.print = help_page(parser.app);
    return result;
  } catch (const CLI::CallForVersion&) {
    result.print = version_text();
    return result;
  }
  result.common = parser.common;
  for (const auto& [command, task] : parser.subcommands) {
    if (command->parsed()) result.task = task();
  }
  return result;
}

}  // namespace ddptrain::bench
