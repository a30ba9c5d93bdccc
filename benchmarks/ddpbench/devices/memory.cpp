#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "benchmarks/ddpbench/devices/stream_clock.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/sizes.h"
#include "benchmarks/ddpbench/table.h"
#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain::bench {
namespace {

constexpr std::uint64_t kDeviceBytes = 1'000'000'000;
constexpr std::uint64_t kHostBytes = 256'000'000;

struct Access {
  std::string memory;  ///< device or host
  std::string operation;
  std::uint64_t bytes = 0;
  double bytes_moved = 0.0;  ///< Read and written.
  std::function<void()> run;
};

/// Copies in parts, with several threads.
void copy_host(char* to, const char* from, std::size_t bytes, int threads) {
  const std::size_t part = (bytes + static_cast<std::size_t>(threads) - 1) / static_cast<std::size_t>(threads);
  std::vector<std::thread> workers;
  for (std::size_t begin = 0; begin < bytes; begin += part) {
    workers.emplace_back([=] { std::memcpy(to + begin, from + begin, std::min(part, bytes - begin)); });
  }
  for (std::thread& worker : workers) worker.join();
}

class MemoryBench {
 public:
  MemoryBench(const World& world, Device& device, const MemoryOptions& options, const CommonOptions& common)
      : world_(world), device_(device), options_(options), threads_(common.threads), min_seconds_(common.min_seconds) {}

  std::vector<Access> accesses() {
    std::vector<Access> all;
    if (device_.kind() == DeviceKind::cuda) add_device(all, options_.bytes != 0 ? options_.bytes : kDeviceBytes);
    add_host(all, options_.bytes != 0 ? options_.bytes : kHostBytes);
    return all;
  }

  /// This rank's median, while all ranks work at once.
  double seconds(const Access& access) {
    access.run();
    std::vector<double> measured;
    for (Rounds rounds(world_, options_.rounds, min_seconds_); rounds.next();) {
      // Several per measurement, so that the start and the wait do not count.
      constexpr int kRepeats = 8;
      const double all = seconds_of(world_, device_, [&] {
        for (int k = 0; k < kRepeats; ++k) access.run();
      });
      measured.push_back(all / kRepeats);
    }
    return median(measured);
  }

 private:
  void add_device(std::vector<Access>& all, std::uint64_t bytes) {
    from_ = device_.allocate(bytes);
    to_ = device_.allocate(bytes);
    const auto moved = static_cast<double>(bytes);
    all.push_back({"device", "copy", bytes, 2.0 * moved,
                   [this, bytes] { device_.copy(to_.data(), from_.data(), bytes, device_.compute_stream()); }});
    all.push_back({"device", "write", bytes, moved,
                   [this, bytes] { device_.zero(to_.data(), bytes, device_.compute_stream()); }});
  }

  void add_host(std::vector<Access>& all, std::uint64_t bytes) {
    host_from_.assign(bytes, 1);
    host_to_.assign(bytes, 0);
    const auto moved = static_cast<double>(bytes);
    all.push_back({"host", "copy", bytes, 2.0 * moved,
                   [this, bytes] { copy_host(host_to_.data(), host_from_.data(), bytes, threads_); }});
    all.push_back({"host", "write", bytes, moved, [this, bytes] { std::memset(host_to_.data(), 0, bytes); }});
  }

  const World& world_;
  Device& device_;
  MemoryOptions options_;
  int threads_;
  double min_seconds_;
  Buffer from_, to_;
  std::vector<char> host_from_, host_to_;
};

}  // namespace

void run_memory(const World& world, const CommonOptions& common, const MemoryOptions& options) {
  if (options.bytes > 0 && options.bytes < 1024) usage_error("--bytes {}: give 1K or more", options.bytes);
  const ResultFile file(world, common);
  const DeviceKind kind = choose_device(world, common.device, common.share_gpu);
  const auto device = make_device(world, common, kind, Precision::fp32);
  SensorLog sensors(world, *device);
  MemoryBench bench(world, *device, options, common);
  Json result = {{"benchmark", "memory"}, {"device", device->name()},  {"ranks_per_gpu", device->options().ranks},
                 {"ranks", world.size()}, {"threads", common.threads}, {"results", Json::array()}};
  print(world, fmt::format("# bytes read and written, {} at once, {}\n", ranks_on_nodes(world), device->name()));
  const Table table({{"memory\n", 8},
                     {"operation\n", 9},
                     {"bytes\n", 12},
                     {"time\n(us)", 10},
                     {"rate per rank\n(GB/s)", 13},
                     {"slowest rank\n(GB/s)", 12}});
  print(world, table.header());
  for (const Access& access : bench.accesses()) {
    const double mine = bench.seconds(access);
    const double seconds = mean_over_ranks(world, mine);
    const double rate = access.bytes_moved / 1e9 / seconds;
    const double slowest = access.bytes_moved / 1e9 / world.max(mine);
    print(world, table.row({access.memory, access.operation, std::to_string(access.bytes), microseconds(seconds),
                            fmt::format("{:.1f}", rate), fmt::format("{:.1f}", slowest)}));
    result["results"].push_back({{"memory", access.memory},
                                 {"operation", access.operation},
                                 {"bytes", access.bytes},
                                 {"time_us", 1e6 * seconds},
                                 {"rate_gbs", rate},
                                 {"rate_slowest_rank_gbs", slowest}});
  }
  sensors.tell(result);
  file.write(result);
}

}  // namespace ddptrain::bench
