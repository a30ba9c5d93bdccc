#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "benchmarks/ddpbench/collectives/collective.h"
#include "runtime/core/tensor.h"

namespace ddptrain::bench {

/// Options that most subcommands take. 0 and empty texts stand for a default that depends on the device.
struct CommonOptions {
  std::string device = "auto";  ///< auto, cpu or cuda
  bool share_gpu = false;       ///< More ranks than GPUs are allowed.
  int threads = 1;              ///< CPU
  std::string json;             ///< File for the result; empty: no file.
  bool force = false;           ///< The file may be one that ddpbench did not write.
  double min_seconds = 0.0;     ///< Shortest time of a measurement.
};

struct P2pOptions {
  std::uint64_t bytes = 160'000'000;
  int repeats = 5;
  int latency_repeats = 100;
};

struct AllreduceOptions {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  std::uint64_t begin = 8;
  std::uint64_t end = 0;
  std::uint64_t factor = 2;
  std::uint64_t step = 0;  ///< Above 0: sizes grow by this many bytes, not by the factor.
  int root = 0;            ///< Of broadcast and reduce.
  int iterations = 20;
  int warmup = 5;
  int graph_launches = 0;  ///< 0: no graph.
  bool symmetric = false;
  bool algorithms = false;  ///< Each of NCCL's algorithms and protocols, one after the other.
  bool check = true;
  /// Of nccl-tests. ddpbench has one process per GPU, so only 1 x 1 runs.
  int threads_per_process = 1;
  int gpus_per_thread = 1;
  std::string typed;  ///< The words after ddpbench, without -t and -g.
};

struct SplitOptions {
  std::uint64_t total = 0;
  std::uint64_t pieces = 1000;
  DType dtype = DType::f32;
  int rounds = 5;
  bool symmetric = false;
};

struct OverlapOptions {
  std::int64_t layers = 24;
  std::int64_t width = 0;
  std::int64_t tokens = 0;
  std::vector<std::uint64_t> buckets;  ///< Bytes; empty: powers of 4 up to all gradients.
  int rounds = 5;
  bool symmetric = false;
  int comm_ctas = 0;
};

struct GemmOptions {
  std::string precision = "auto";
  std::int64_t cube = 0;
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  std::int64_t vocabulary = 0;
  double seconds = 0.05;  ///< Duration of each measurement.
  int rounds = 5;
};

struct MemoryOptions {
  std::uint64_t bytes = 0;
  int rounds = 5;
};

struct DoctorOptions {
  double seconds = 2.0;           ///< Time of the measurement between neighbours.
  double tolerance = 0.5;         ///< Parts slower than this fraction of the usual rate are named.
  std::vector<std::string> data;  ///< Files and folders that all hosts should have alike.
};

struct StepOptions {
  std::vector<std::string> arguments;  ///< Flags of ddptrain.
};

using Task = std::variant<P2pOptions, AllreduceOptions, SplitOptions, OverlapOptions, GemmOptions, MemoryOptions,
                          DoctorOptions, StepOptions>;

/// Whether several processes of the benchmark have to know each other. Otherwise each measures by itself.
bool needs_ranks(const Task& task);

/// The request of a command line: a benchmark, or a text to print.
struct CommandLine {
  CommonOptions common;
  Task task;
  std::optional<std::string> print;
};

/// UsageError for every mistake that does not depend on the devices.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace ddptrain::bench
