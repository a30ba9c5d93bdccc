#include <algorithm>
#include <cstdlib>
#include <optional>

#include "benchmarks/ddpbench/collectives/check_pattern.h"
#include "benchmarks/ddpbench/collectives/collective.h"
#include "benchmarks/ddpbench/collectives/nccl_choices.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/sizes.h"
#include "benchmarks/ddpbench/table.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/diagnostics/nccl_log_capture.h"

namespace ddptrain::bench {
namespace {

constexpr std::uint64_t kEndOnGpu = std::uint64_t{128} << 20;
constexpr std::uint64_t kEndOnCpu = std::uint64_t{8} << 20;

struct MeasuredSize {
  double seconds = 0.0;  ///< Time of one collective, mean over the ranks.
  Bandwidth bandwidth;
  std::uint64_t wrong = 0;  ///< Number of wrong elements of all ranks.
};

/// Measures as nccl-tests does: queues the iterations one behind the other, each on the next range of the buffers, and
/// takes the wall clock from the first call to the end of the last one, averaged over iterations and ranks.
class AllreduceBench {
 public:
  AllreduceBench(const World& world, Device& device, const AllreduceOptions& options, std::uint64_t end,
                 double min_seconds)
      : world_(world),
        device_(device),
        options_(options),
        end_(end),
        min_seconds_(min_seconds),
        communicator_(make_communicator(world, device, {.symmetric = options.symmetric})) {
    if (options.symmetric && !communicator_->symmetric()) {
      usage_error("--symmetric: {}. Leave it out.", communicator_->why_not_symmetric());
    }
    send_ = communicator_->allocate(end);
    recv_ = communicator_->allocate(end);
  }

  const Communicator& communicator() const { return *communicator_; }
  bool choose_algorithm(const std::string& name) { return communicator_->choose_algorithm(name); }

  CollectiveSize size_of_call(std::uint64_t bytes) const {
    return collective_size(options_.collective, bytes, size_of(options_.dtype), world_.size());
  }

  void warm_up(std::uint64_t bytes) {
    for (int i = 0; i < options_.warmup; ++i) start(size_of_call(bytes), false, i);
    device_.synchronize();
  }

  MeasuredSize measure(const CollectiveSize& size, bool in_place) {
    start(size, in_place, 0);
    double seconds = 0.0;
    Rounds rounds(world_, 1, min_seconds_);
    while (rounds.next()) seconds += time(size, in_place) / options_.iterations;
    MeasuredSize result;
    result.seconds = mean_over_ranks(world_, seconds / rounds.done());
    result.bandwidth = bandwidth(options_.collective, size.bytes, result.seconds, world_.size());
    if (options_.check) result.wrong = check(size, in_place);
    return result;
  }

 private:
  double time(const CollectiveSize& size, bool in_place) {
    const auto iterations = [&] {
      for (int i = 0; i < options_.iterations; ++i) start(size, in_place, i);
    };
    if (options_.graph_launches == 0) return seconds_of(world_, device_, iterations);
    const auto graph = device_.capture(iterations);
    const auto launches = [&] {
      for (int i = 0; i < options_.graph_launches; ++i) graph->launch();
    };
    return seconds_of(world_, device_, launches) / options_.graph_launches;
  }

  struct Call {
    Tensor from;
    Tensor to;
  };

  /// The input and output of a rank in the buffers, for iteration `iteration`.
  Call call(const CollectiveSize& size, bool in_place, int iteration) const {
    const std::size_t stretches = std::max<std::size_t>(end_ / std::max<std::size_t>(size.bytes, 1), 1);
    const std::size_t offset = static_cast<std::size_t>(iteration) % stretches * size.bytes;
    const std::size_t mine = size.count * size_of(options_.dtype) * static_cast<std::size_t>(world_.rank());
    char* to = static_cast<char*>(recv_.data()) + offset;
    char* from = in_place ? to : static_cast<char*>(send_.data()) + offset;
    if (in_place && options_.collective == Collective::all_gather) from += mine;
    if (in_place && options_.collective == Collective::reduce_scatter) to += mine;
    return {{from, options_.dtype, {static_cast<std::int64_t>(size.send)}},
            {to, options_.dtype, {static_cast<std::int64_t>(size.recv)}}};
  }

  void start(const CollectiveSize& size, bool in_place, int iteration) { start(call(size, in_place, iteration)); }

  void start(const Call& call) { communicator_->wait(started(call)); }

  Communicator::Ticket started(const Call& call) {
    const Stream stream = device_.compute_stream();
    switch (options_.collective) {
      case Collective::all_reduce:
        return communicator_->all_reduce_sum(call.from, call.to, stream);
      case Collective::reduce_scatter:
        return communicator_->reduce_scatter_sum(call.from, call.to, stream);
      case Collective::all_gather:
        return communicator_->all_gather(call.from, call.to, stream);
      case Collective::broadcast:
        return communicator_->broadcast(call.from, call.to, options_.root, stream);
      case Collective::reduce:
        return communicator_->reduce_sum(call.from, call.to, options_.root, stream);
      case Collective::all_to_all:
        return communicator_->all_to_all(call.from, call.to, stream);
      case Collective::send_receive:
        return communicator_->exchange({{call.from, rank_after(1)}}, {{call.to, rank_after(-1)}}, stream);
    }
    fail("unknown collective");
  }

  int rank_after(int steps) const { return (world_.rank() + steps + world_.size()) % world_.size(); }

  Expected expected(const CollectiveSize& size) const {
    const auto rank = static_cast<std::uint64_t>(world_.rank());
    const std::uint64_t share = std::max<std::uint64_t>(size.count, 1);
    switch (options_.collective) {
      case Collective::all_reduce:
        return {0, world_.size(), 0, 0};
      case Collective::reduce_scatter:
        return {0, world_.size(), size.count * rank, 0};
      case Collective::all_gather:
        return {0, 1, 0, share};
      case Collective::broadcast:
        return {options_.root, 1, 0, 0};
      case Collective::reduce:
        return {0, world_.size(), 0, 0};
      case Collective::all_to_all:
        return {0, 1, size.count * rank, share};
      case Collective::send_receive:
        return {rank_after(-1), 1, 0, 0};
    }
    fail("unknown collective");
  }

  std::uint64_t check(const CollectiveSize& size, bool in_place) {
    const bool on_gpu = device_.kind() == DeviceKind::cuda;
    device_.zero(recv_.data(), recv_.bytes(), device_.compute_stream());
    device_.synchronize();
    const Call once = call(size, in_place, 0);
    (on_gpu ? gpu::fill_pattern : fill_pattern)(once.from, world_.rank());
    world_.barrier();
    start(once);
    device_.synchronize();
    // Only the root has a result of a reduce.
    const bool has_result = options_.collective != Collective::reduce || world_.rank() == options_.root;
    const std::uint64_t wrong = has_result ? (on_gpu ? gpu::count_wrong : count_wrong)(once.to, expected(size)) : 0;
    return static_cast<std::uint64_t>(world_.sum(static_cast<double>(wrong)));
  }

  const World& world_;
  Device& device_;
  AllreduceOptions options_;
  std::uint64_t end_;
  double min_seconds_;
  std::unique_ptr<Communicator> communicator_;
  Buffer send_;  // after communicator_, whose windows they may be
  Buffer recv_;
};

Table allreduce_table() {
  std::vector<Table::Column> columns = {
      {"size\n(B)", 12}, {"count\n(elements)", 12}, {"type\n", 7}, {"redop\n", 6}, {"root\n", 5}};
  for (int i = 0; i < 2; ++i) {
    columns.insert(columns.end(), {{"time\n(us)", 8}, {"algbw\n(GB/s)", 7}, {"busbw\n(GB/s)", 7}, {"#wrong\n", 6}});
  }
  return Table(columns);
}

std::string redop_of(Collective collective) { return adds(collective) ? "sum" : "none"; }

std::string dtype_name(DType dtype) { return dtype == DType::bf16 ? "bf16" : "float"; }

/// The cells of one half of a row, and the entry of the file.
Json add_measured(const AllreduceOptions& options, const CollectiveSize& size, bool in_place, const MeasuredSize& m,
                  std::vector<std::string>& cells) {
  const std::string wrong = options.check ? std::to_string(m.wrong) : "N/A";
  for (const std::string& cell : {microseconds(m.seconds), fmt::format("{:.2f}", m.bandwidth.algbw),
                                  fmt::format("{:.2f}", m.bandwidth.busbw), wrong}) {
    cells.push_back(cell);
  }
  return {{"bytes", size.bytes},
          {"count", size.count},
          {"dtype", dtype_name(options.dtype)},
          {"redop", redop_of(options.collective)},
          {"in_place", in_place},
          {"time_us", 1e6 * m.seconds},
          {"algbw_gbs", m.bandwidth.algbw},
          {"busbw_gbs", m.bandwidth.busbw},
          {"wrong", options.check ? Json(m.wrong) : Json(nullptr)}};
}

/// What a user of MPI_Allreduce may wonder at.
std::string note_on_calls(const Communicator& communicator, const AllreduceOptions& options) {
  if (communicator.library() != "MPI" || options.collective != Collective::all_reduce) return "";
  return "# MPI_Iallreduce or messages, as ddptrain sends gradients beside compute. Below 1 MB, MPI_Allreduce, which "
         "blocks, can be three times as fast\n";
}

/// The file without results. Prints the heading of the table.
Json begin_result(const World& world, const Device& device, const AllreduceOptions& options,
                  const Communicator& communicator) {
  print(world, fmt::format("# {} of {}, {}, {}\n{}#{:>57}{:>32}\n", name_of(options.collective),
                           library_version(communicator), ranks_on_nodes(world), device.name(),
                           note_on_calls(communicator, options), "out-of-place", "in-place"));
  return {{"benchmark", "allreduce"},
          {"op", name_of(options.collective)},
          {"library", communicator.library()},
          {"version", library_version(communicator)},
          {"ranks", world.size()},
          {"nodes", world.nodes()},
          {"device", device.name()},
          {"ranks_per_gpu", device.options().ranks},
          {"root", has_root(options.collective) ? Json(options.root) : Json(nullptr)},
          {"graph_launches", options.graph_launches},
          {"symmetric", options.symmetric},
          {"results", Json::array()}};
}

struct Totals {
  double bus = 0.0;
  std::uint64_t wrong = 0;
  int measured = 0;
};

/// UsageError if the flags of nccl-tests ask for several GPUs per process.
void require_a_rank_per_gpu(const World& world, const AllreduceOptions& options) {
  const int gpus = options.threads_per_process * options.gpus_per_thread;
  if (gpus == 1) return;
  const char* flag = options.gpus_per_thread > 1 ? "-g" : "-t";
  usage_error("{} {}: ddpbench has one process per GPU. Start: mpirun -np {} --bind-to none ddpbench {}", flag,
              options.gpus_per_thread > 1 ? options.gpus_per_thread : options.threads_per_process, gpus * world.size(),
              options.typed);
}

/// One table. `choice`: of the algorithm, by NCCL's name; empty: NCCL's.
void measure_sizes(const World& world, AllreduceBench& bench, const AllreduceOptions& options,
                   const std::vector<std::uint64_t>& sizes, const std::string& choice, Json& results, Totals& totals) {
  const Table table = allreduce_table();
  print(world, table.header());
  bench.warm_up(sizes.back());
  bench.warm_up(sizes.front());
  for (const std::uint64_t bytes : sizes) {
    const CollectiveSize size = bench.size_of_call(bytes);
    std::vector<std::string> cells = {std::to_string(size.bytes), std::to_string(size.count), dtype_name(options.dtype),
                                      redop_of(options.collective),
                                      has_root(options.collective) ? std::to_string(options.root) : "-1"};
    for (const bool in_place : {false, true}) {
      if (in_place && !works_in_place(options.collective)) {
        cells.insert(cells.end(), 4, "N/A");
        continue;
      }
      const MeasuredSize measured = bench.measure(size, in_place);
      totals.bus += measured.bandwidth.busbw;
      totals.wrong += measured.wrong;
      ++totals.measured;
      results.push_back(add_measured(options, size, in_place, measured, cells));
      if (!choice.empty()) results.back()["choice"] = choice;
    }
    print(world, table.row(cells));
  }
}

/// A table for each of NCCL's choices that this job has. UsageError if it has none.
void measure_choices(const World& world, AllreduceBench& bench, const AllreduceOptions& options,
                     const std::vector<std::uint64_t>& sizes, Json& results, Totals& totals) {
  for (const char* algorithm : {"RING", "TREE", "NVLS", "NVLSTREE", "COLLNET_DIRECT", "COLLNET_CHAIN"}) {
    for (const char* protocol : {"LL", "LL128", "SIMPLE"}) {
      const std::string choice = fmt::format("{}_{}", algorithm, protocol);
      if (!bench.choose_algorithm(choice)) continue;
      print(world, fmt::format("# {}\n", choice));
      measure_sizes(world, bench, options, sizes, choice, results, totals);
    }
  }
  if (totals.measured > 0) return;
  usage_error(
      "--algorithms: {} does not choose per call; NCCL 2.31 or newer does. Set NCCL_ALGO and NCCL_PROTO instead.",
      library_version(bench.communicator()));
}

}  // namespace

void run_allreduce(const World& world, const CommonOptions& common, const AllreduceOptions& options) {
  require_a_rank_per_gpu(world, options);
  require_ranks(world, "ddpbench allreduce");
  if (options.root >= world.size()) usage_error("--root {}: there are {} ranks", options.root, world.size());
  if (options.algorithms && options.collective != Collective::all_reduce) {
    usage_error("--algorithms: it is for --op all-reduce");
  }
  const ResultFile file(world, common);
  const DeviceKind kind = choose_device(world, common.device, common.share_gpu);
  require_gpu(kind, options.graph_launches > 0, "--graph");
  require_gpu(kind, options.symmetric, "--symmetric");
  const bool on_gpu = kind == DeviceKind::cuda;
  if (on_gpu && options.collective == Collective::broadcast && std::getenv("NCCL_ALGO") != nullptr) {
    usage_error("--op broadcast with NCCL_ALGO: broadcasts then go over MPI. Unset the variable.");
  }
  const std::uint64_t end = options.end != 0 ? options.end : on_gpu ? kEndOnGpu : kEndOnCpu;
  const auto sizes =
      options.step > 0 ? size_steps(options.begin, end, options.step) : size_sweep(options.begin, end, options.factor);
  const auto device = make_device(world, common, kind, Precision::fp32);
  // Before NCCL starts. NCCL logs a line per call; without a graph, that adds a microsecond to small calls.
  std::optional<NcclLogCapture> nccl_log;
  if (options.graph_launches > 0 && world.rank() == 0) nccl_log.emplace();
  SensorLog sensors(world, *device);
  AllreduceBench bench(world, *device, options, end, common.min_seconds);
  Json result = begin_result(world, *device, options, bench.communicator());
  Totals totals;
  if (options.algorithms) {
    measure_choices(world, bench, options, sizes, result["results"], totals);
  } else {
    measure_sizes(world, bench, options, sizes, "", result["results"], totals);
  }
  const auto [bus, wrong, measured] = totals;
  if (options.check) print(world, fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED"));
  print(world, fmt::format("# Avg bus bandwidth    : {:.4f} GB/s\n", bus / measured));
  if (nccl_log) {
    add_nccl(result, nccl_log->log(), options.collective);
    print(world, fmt::format("# NCCL chose           : {}\n", choices_text(result["results"])));
  }
  sensors.tell(result);
  file.write(result);
  if (wrong > 0) fail("{} elements of results are wrong", wrong);
}

}  // namespace ddptrain::bench
