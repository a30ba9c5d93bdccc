#include "benchmarks/ddpbench/collectives/collective.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/sizes.h"
#include "benchmarks/ddpbench/table.h"
#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain::bench {
namespace {

constexpr std::uint64_t kTotalOnGpu = 4'000'000'000;
constexpr std::uint64_t kTotalOnCpu = 64'000'000;

/// Seconds of `pieces` all-reduces of equal parts of `all`, one behind the other: mean over the ranks, median over the
/// rounds.
double time_pieces(const World& world, Device& device, Communicator& communicator, const Tensor& all,
                   std::uint64_t pieces, Rounds rounds) {
  const auto count = all.size() / static_cast<std::int64_t>(pieces);
  const auto work = [&] {
    Communicator::Ticket last = 0;
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(pieces); ++i) {
      last = communicator.all_reduce_sum(all.stretch(i * count, count), device.compute_stream());
    }
    communicator.wait(last);
  };
  work();
  std::vector<double> seconds;
  while (rounds.next()) {
    device.zero(all.data, all.bytes(), device.compute_stream());  // sums of sums would overflow
    seconds.push_back(mean_over_ranks(world, seconds_of(world, device, work)));
  }
  return median(seconds);
}

Table split_table() {
  return Table({{"pieces", 8},
                {"bytes\neach", 14},
                {"time\n(us)", 12},
                {"algbw\n(GB/s)", 8},
                {"busbw\n(GB/s)", 8},
                {"busbw\n(Gbit/s)", 9},
                {"of one\npiece", 7}});
}

}  // namespace

void run_split(const World& world, const CommonOptions& common, const SplitOptions& options) {
  require_ranks(world, "ddpbench split");
  const ResultFile file(world, common);
  const DeviceKind kind = choose_device(world, common.device, common.share_gpu);
  require_gpu(kind, options.symmetric, "--symmetric");
  if (kind == DeviceKind::cpu && options.dtype != DType::f32) {
    usage_error("--dtype bf16: MPI adds float only. Use --dtype float.");
  }
  const std::uint64_t total = options.total != 0 ? options.total : kind == DeviceKind::cuda ? kTotalOnGpu : kTotalOnCpu;
  const std::uint64_t elements = total / size_of(options.dtype);
  if (elements < options.pieces) {
    usage_error("--total {} --pieces {}: there are more pieces than elements", total, options.pieces);
  }
  const auto device = make_device(world, common, kind, Precision::fp32);
  const auto communicator = make_communicator(world, *device, {.symmetric = options.symmetric});
  const Buffer buffer = communicator->allocate(total);
  const Tensor all = buffer.view(options.dtype, {static_cast<std::int64_t>(elements)});

  SensorLog sensors(world, *device);
  Json result = {{"benchmark", "split"},           {"library", library_version(*communicator)},
                 {"device", device->name()},       {"ranks_per_gpu", device->options().ranks},
                 {"ranks", world.size()},          {"nodes", world.nodes()},
                 {"symmetric", options.symmetric}, {"results", Json::array()}};
  print(world, fmt::format("# all-reduce of {} in pieces, {}, {}, {}\n", format_size(total),
                           library_version(*communicator), ranks_on_nodes(world), device->name()));
  const Table table = split_table();
  print(world, table.header());
  double one_piece = 0.0;
  for (const std::uint64_t pieces : one_two_five(options.pieces)) {
    const std::uint64_t each = elements / pieces * size_of(options.dtype);
    const double seconds =
        time_pieces(world, *device, *communicator, all, pieces, Rounds(world, options.rounds, common.min_seconds));
    const Bandwidth bw = bandwidth(Collective::all_reduce, each * pieces, seconds, world.size());
    if (pieces == 1) one_piece = bw.busbw;
    const double share = bw.busbw / one_piece;
    print(world, table.row({std::to_string(pieces), std::to_string(each), microseconds(seconds),
                            fmt::format("{:.2f}", bw.algbw), fmt::format("{:.2f}", bw.busbw),
                            fmt::format("{:.1f}", 8.0 * bw.busbw), fmt::format("{:.1f}%", 100.0 * share)}));
    result["results"].push_back({{"pieces", pieces},
                                 {"bytes_each", each},
                                 {"dtype", options.dtype == DType::f32 ? "float" : "bf16"},
                                 {"time_us", 1e6 * seconds},
                                 {"algbw_gbs", bw.algbw},
                                 {"busbw_gbs", bw.busbw},
                                 {"share_of_one_piece", share}});
  }
  sensors.tell(result);
  file.write(result);
}

}  // namespace ddptrain::bench
