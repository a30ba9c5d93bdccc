#include "benchmarks/ddpbench/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "benchmarks/ddpbench/sizes.h"
#include "launch/app/flags/cli.h"
#include "launch/app/flags/options.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain::bench {
namespace {

void require(bool condition, const std::string& flag, double value, const char* what) {
  if (!condition) usage_error("{} {}: give {}", flag, value, what);
}

/// "-b,--begin,--minbytes" as "--begin", for messages.
std::string name_in(const std::string& names) {
  const std::size_t first = names.find("--");
  return names.substr(first, names.find(',', first) - first);
}

void add_size(CLI::App& app, const std::string& flag, std::uint64_t& value, const std::string& help) {
  app.add_option_function<std::string>(
         flag, [name = name_in(flag), &value](const std::string& text) { value = parse_size(name, text); }, help)
      ->type_name("SIZE");
}

template <class T>
CLI::Option* add_number(CLI::App& app, const std::string& flag, T& value, double least, double most,
                        const std::string& help) {
  return app
      .add_option_function<double>(
          flag,
          [name = name_in(flag), &value, least, most](const double& number) {
            const bool fits = number >= least && number <= most;
            require(fits && static_cast<double>(static_cast<T>(number)) == number, name, number,
                    fmt::format("a number from {} to {}", least, most).c_str());
            value = static_cast<T>(number);
          },
          help)
      ->type_name("N");
}

void add_dtype(CLI::App& app, DType& dtype) {
  app.add_option_function<std::string>(
         "-d,--dtype,--datatype",
         [&dtype](const std::string& name) {
           static const std::map<std::string, DType> types = {{"float", DType::f32},
                                                              {"float32", DType::f32},
                                                              {"fp32", DType::f32},
                                                              {"bf16", DType::bf16},
                                                              {"bfloat16", DType::bf16}};
           const auto found = types.find(name);
           if (found == types.end()) usage_error("--dtype {}: give float or bf16", printable(name));
           dtype = found->second;
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
  app.add_flag("--force", o.force, "Overwrite a file that no ddpbench wrote");
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

/// The operand of --op: a collective, or as in nccl-tests how to reduce, which is always a sum.
void set_operation(AllreduceOptions& o, const std::string& name) {
  if (name == "sum") return;
  if (const auto collective = collective_named(name)) {
    o.collective = *collective;
    return;
  }
  for (const char* reduction : {"prod", "min", "max", "avg", "mulsum", "all"}) {
    if (name == reduction) usage_error("--op {}: ddpbench reduces by sum only. Leave --op out.", name);
  }
  std::vector<std::string> names;
  for (const Collective collective : all_collectives()) names.push_back(name_of(collective));
  usage_error("--op {}: give one of {}", printable(name), fmt::join(names, ", "));
}

/// A flag of nccl-tests that has no effect here. UsageError for values other than `same`, under which nccl-tests does
/// what ddpbench does.
void add_fixed(CLI::App& app, const std::string& names, const std::vector<std::string>& same, const char* hint) {
  app.add_option_function<std::string>(names,
                                       [names, same, hint](const std::string& text) {
                                         if (std::find(same.begin(), same.end(), text) != same.end()) return;
                                         usage_error("{} {}: {}", names, printable(text), hint);
                                       })
      ->group("");
}

/// Flags of nccl-tests that --help does not list.
void add_nccl_tests(CLI::App& app, AllreduceOptions& o) {
  add_number(app, "-t,--nthreads", o.threads_per_process, 1, 1024, "")->group("");
  add_number(app, "-g,--ngpus", o.gpus_per_thread, 1, 1024, "")->group("");
  app.add_option_function<std::string>("-R,--local_register",
                                       [&o](const std::string& text) {
                                         if (text != "0" && text != "2") {
                                           usage_error(
                                               "-R,--local_register {}: give 0, or 2 for symmetric memory. NCCL gains "
                                               "nothing from registered buffers in place.",
                                               printable(text));
                                         }
                                         o.symmetric = text == "2";
                                       })
      ->group("");
  add_fixed(app, "-p,--parallel_init", {"0", "1"}, "give 0 or 1; each process starts its own GPU");
  add_fixed(app, "-m,--agg_iters", {"1"}, "NCCL calls are not grouped; ddpbench split compares one call with many");
  add_fixed(app, "-N,--run_cycles", {"1"}, "ddpbench prints one table; --min-seconds S measures each size longer");
  add_fixed(app, "-z,--blocking", {"0"}, "calls are queued one behind the other; give 0, and -n 1 to wait for each");
  add_fixed(app, "-y,--stream_null", {"0"}, "ddpbench has its own stream; leave it out");
  add_fixed(app, "-C,--report_cputime", {"0"}, "ddpbench reports the time until the results are there; leave it out");
  add_fixed(app, "-a,--average", {"1"}, "ddpbench reports the mean over the ranks; give 1");
  add_fixed(app, "-T,--timeout", {"0"}, "ddpbench has no time limit; start it with: timeout SECONDS mpirun ...");
  add_fixed(app, "-S,--report_timestamps", {"0"}, "ddpbench prints no time of day; leave it out");
  add_fixed(app, "-x,--cta_policy", {}, "ddpbench leaves the policy to NCCL; set the variable NCCL_CTA_POLICY");
  add_fixed(app, "-J,--output_file", {}, "--json FILE writes the results of ddpbench as JSON");
}

void add_allreduce(CLI::App& app, AllreduceOptions& o) {
  app.add_option_function<std::string>(
         "-o,--op", [&o](const std::string& name) { set_operation(o, name); },
         "Collective: all-reduce, reduce-scatter, all-gather, broadcast, reduce, all-to-all or send-receive "
         "(all-reduce)")
      ->type_name("NAME");
  add_size(app, "-b,--begin,--minbytes", o.begin, "Smallest size (8)");
  add_size(app, "-e,--end,--maxbytes", o.end, "Largest size (128M; on CPUs 8M)");
  add_number(app, "-f,--factor,--stepfactor", o.factor, 2, 1e9, "Factor between sizes (2)");
  add_size(app, "-i,--stepbytes", o.step, "Difference between sizes, in place of a factor");
  add_number(app, "-r,--root", o.root, 0, 1e6, "Root of broadcast and reduce (0)");
  add_dtype(app, o.dtype);
  add_number(app, "-n,--iterations,--iters", o.iterations, 1, 1e6, "Collectives per measurement (20)");
  add_number(app, "-w,--warmup,--warmup_iters", o.warmup, 0, 1e6,
             "Warm-up collectives at the largest and the smallest size (5)");
  add_number(app, "-G,--graph,--cudagraph", o.graph_launches, 0, 1e6,
             "Capture the iterations as a CUDA graph and launch it N times (0: no graph)");
  app.add_option_function<std::string>(
         "-c,--check",
         [&o](const std::string& text) {
           if (text != "0" && text != "1") usage_error("--check {}: give 1, or 0 for no check", printable(text));
           o.check = text == "1";
         },
         "1: check the results once; 0: do not (1)")
      ->type_name("0|1");
  app.add_flag("--symmetric", o.symmetric, "Use NCCL symmetric memory (one node; NCCL_ALGO then has no effect)");
  app.add_flag("--algorithms", o.algorithms,
               "All-reduce by each of NCCL's algorithms and protocols in turn (NCCL 2.31 and newer)");
  app.add_flag("!--no-check", o.check, "Do not check the results");
  add_nccl_tests(app, o);
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
    add("allreduce",
        "Time and bandwidth of an all-reduce, or another collective (--op), by size, in the columns and with the flags "
        "of nccl-tests",
        allreduce, add_allreduce);
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
    step->add_flag("--force", common.force, "Overwrite a file that no ddpbench wrote");
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

/// `words` with the name of a collective (or of its program in nccl-tests) as first word replaced by the subcommand
/// that measures it.
std::vector<std::string> with_subcommand(const CLI::App& app, std::vector<std::string> words) {
  if (words.empty() || words.front().starts_with("-")) return words;
  const auto named = [&words](const CLI::App* command) { return command->get_name() == words.front(); };
  if (!app.get_subcommands(named).empty()) return words;
  const auto collective = collective_named(words.front());
  if (!collective) return words;
  words.front() = "allreduce";
  words.insert(words.begin() + 1, {"--op", name_of(*collective)});
  return words;
}

/// The subcommands of with_subcommand(), for --help.
std::string collectives_text() {
  std::string names;
  for (const Collective collective : all_collectives()) names += fmt::format(" {}", name_of(collective));
  return "Collectives are subcommands, too, each with the flags of allreduce:\n" + wrapped(names, 2);
}

/// The words without the flags of nccl-tests that give a process several GPUs.
std::string without_gpus_per_process(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string name = words[i].substr(0, words[i].find('='));
    if (name == "-g" || name == "-t" || name == "--ngpus" || name == "--nthreads") {
      if (name == words[i]) ++i;  // its value
      continue;
    }
    const bool joined = words[i].starts_with("-g") || words[i].starts_with("-t");
    if (!joined) text += (text.empty() ? "" : " ") + words[i];
  }
  return text;
}

}  // namespace

bool needs_ranks(const Task& task) {
  if (const auto* step = std::get_if<StepOptions>(&task)) {
    const auto only_prints = [](const std::string& word) {
      return word == "--help" || word == "-h" || word == "--version";
    };
    return std::none_of(step->arguments.begin(), step->arguments.end(), only_prints);
  }
  return !std::holds_alternative<P2pOptions>(task) && !std::holds_alternative<GemmOptions>(task) &&
         !std::holds_alternative<MemoryOptions>(task);
}

CommandLine parse_command_line(int argc, const char* const* argv) {
  Parser parser;
  CommandLine result;
  const std::vector<std::string> words = with_subcommand(parser.app, {argv + 1, argv + argc});
  parser.allreduce.typed = without_gpus_per_process(words);
  std::vector<const char*> arguments = {argv[0]};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  try {
    parse_flags(parser.app, static_cast<int>(arguments.size()), arguments.data(),
                "ddpbench --help and ddpbench SUBCOMMAND --help list");
  } catch (const CLI::CallForHelp&) {
    result.print = help_page(parser.app);
    if (parser.app.get_subcommands().empty()) *result.print += collectives_text();
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
