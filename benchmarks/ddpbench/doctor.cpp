#include "benchmarks/ddpbench/doctor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/table.h"
#include "launch/check_hosts.h"
#include "runtime/core/error.h"
#include "runtime/topology/interfaces.h"
#include "runtime/topology/machine.h"

namespace ddptrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Multiply-adds that need no memory, on one processor.
double processor_gflops(double seconds) {
  constexpr int kLanes = 64;
  constexpr int kTurns = 10'000;
  float sums[kLanes] = {};
  double operations = 0.0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    for (int turn = 0; turn < kTurns; ++turn) {
      for (float& sum : sums) sum = 0.999F * sum + 1.0F;
    }
    operations += 2.0 * kLanes * kTurns;
  }
  volatile float used = sums[0];
  static_cast<void>(used);
  return operations / seconds_since(start) / 1e9;
}

/// A copy reads and writes each byte.
double memory_gb_per_s(double seconds) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double bytes = 0.0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    std::memcpy(to.data(), from.data(), kBytes);
    std::swap(from, to);
    bytes += 2.0 * kBytes;
  }
  return bytes / seconds_since(start) / 1e9;
}

double load_average() {
  double load = 0.0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

std::uint64_t network_errors() {
  std::uint64_t errors = 0;
  for (const NetworkInterface& interface : network_interfaces()) errors += interface.errors;
  return errors;
}

/// Whether all of several are slow.
bool all_slow(const std::vector<const LinkRate*>& links, double limit) {
  return !links.empty() && std::all_of(links.begin(), links.end(), [&](auto* link) { return link->gb_per_s < limit; });
}

class Diagnosis {
 public:
  Diagnosis(const std::vector<HostRates>& hosts, const std::vector<LinkRate>& links, double tolerance)
      : hosts_(hosts), links_(links), tolerance_(tolerance) {
    for (const HostRates& host : hosts) names_[host.rank] = host.name;
  }

  std::vector<std::string> lines() {
    processors_and_memory();
    if (!links_.empty()) network();
    if (lines_.empty())
      lines_.push_back(fmt::format("No host and no link is slower than {:.0f}% of the median", 100.0 * tolerance_));
    return lines_;
  }

 private:
  void processors_and_memory() {
    low("computes at", "GFLOP/s on one processor", [](const HostRates& host) { return host.processor_gflops; });
    low("copies memory at", "GB/s", [](const HostRates& host) { return host.memory_gb_per_s; });
  }

  void low(const char* does, const char* unit, const std::function<double(const HostRates&)>& rate) {
    std::vector<double> rates;
    for (const HostRates& host : hosts_) rates.push_back(rate(host));
    const double usual = hosts_.size() > 2 ? median(rates) : *std::max_element(rates.begin(), rates.end());
    for (const HostRates& host : hosts_) {
      if (rate(host) >= tolerance_ * usual) continue;
      lines_.push_back(fmt::format("{} is slow: it {} {:.3g} {}, {:.0f}% of what is usual ({:.3g}){}", host.name, does,
                                   rate(host), unit, 100.0 * rate(host) / usual, usual, noted(host)));
    }
  }

  void network() {
    std::vector<double> rates;
    for (const LinkRate& link : links_) rates.push_back(link.gb_per_s);
    // A slow host slows down half of the links of a ring of four, and more of smaller ones.
    std::sort(rates.begin(), rates.end());
    usual_ = rates[rates.size() - 1 - rates.size() / 4];
    std::vector<const LinkRate*> explained;
    for (const HostRates& host : hosts_) {
      const auto out = links_of(host.rank, true);
      const auto in = links_of(host.rank, false);
      const bool sends = all_slow(out, limit()) && (hosts_.size() > 2 || !all_slow(in, limit()));
      const bool receives = all_slow(in, limit()) && hosts_.size() > 2;
      if (!sends && !receives) continue;
      const auto& slow = sends ? out : in;
      const auto slower = *std::min_element(slow.begin(), slow.end(), by_rate);
      lines_.push_back(fmt::format("{} is slow: it {} at {:.3g} GB/s, {:.0f}% of what is usual ({:.3g}){}", host.name,
                                   sends && receives ? "sends and receives"
                                   : sends           ? "sends"
                                                     : "receives",
                                   slower->gb_per_s, 100.0 * slower->gb_per_s / usual_, usual_, noted(host)));
      if (sends) explained.insert(explained.end(), out.begin(), out.end());
      if (receives) explained.insert(explained.end(), in.begin(), in.end());
    }
    for (const LinkRate& link : links_) {
      if (link.gb_per_s >= limit() || std::count(explained.begin(), explained.end(), &link) > 0) continue;
      lines_.push_back(fmt::format("The way from {} to {} is slow: {:.3g} GB/s, {:.0f}% of what is usual ({:.3g})",
                                   names_[link.from], names_[link.to], link.gb_per_s, 100.0 * link.gb_per_s / usual_,
                                   usual_));
    }
  }

  static bool by_rate(const LinkRate* a, const LinkRate* b) { return a->gb_per_s < b->gb_per_s; }
  double limit() const { return tolerance_ * usual_; }

  std::vector<const LinkRate*> links_of(int rank, bool out) const {
    std::vector<const LinkRate*> found;
    for (const LinkRate& link : links_) {
      if ((out ? link.from : link.to) == rank) found.push_back(&link);
    }
    return found;
  }

  static std::string noted(const HostRates& host) {
    return host.notes.empty() ? "" : fmt::format(". Different there: {}", fmt::join(host.notes, "; "));
  }

  const std::vector<HostRates>& hosts_;
  const std::vector<LinkRate>& links_;
  double tolerance_;
  double usual_ = 0.0;  // GB/s
  std::map<int, std::string> names_;
  std::vector<std::string> lines_;
};

/// The driver is asked, which takes a while.
std::vector<HostFact> facts_of_gpus(const World& world) {
  if (world.local_rank() != 0) return {};
  const Machine machine = describe_machine(world.hostname(), driver_facts({}));
  std::map<std::string, int> names;
  std::set<std::string> links;
  for (std::size_t i = 0; i < machine.gpus.size(); ++i) {
    const GpuInfo& gpu = machine.gpus[i];
    ++names[gpu.pcie ? fmt::format("{} (PCIe {} x{})", gpu.name, gpu.pcie->generation, gpu.pcie->width) : gpu.name];
    for (std::size_t j = 0; j < i; ++j) links.insert(machine.links[i][j]);
  }
  std::vector<std::string> texts;
  for (const auto& [name, count] : names) texts.push_back(fmt::format("{} x {}", count, name));
  std::vector<std::string> nics;
  for (const NicInfo& nic : machine.nics)
    nics.push_back(fmt::format("{} ({} Gbit/s)", nic.name, nic.speed_gbit.value_or(0)));
  const auto in_words = [](const auto& values) {
    return values.empty() ? "none" : fmt::format("{}", fmt::join(values, ", "));
  };
  return {{"the list of GPUs", in_words(texts), "See ddptopo there; a GPU may have fallen off its bus (dmesg)"},
          {"the kind of links between GPUs", in_words(links), "See ddptopo there, and nvidia-smi nvlink --status"},
          {"the list of network cards", in_words(nics), "See ddptopo there"}};
}

struct Measured {
  std::vector<HostRates> hosts;
  std::vector<LinkRate> links;
  std::vector<std::string> differences;
};

/// The lowest rank of each host.
std::vector<int> first_ranks(const World& world) {
  std::vector<int> ranks;
  const auto locals = world.all_gather(std::to_string(world.local_rank()));
  for (std::size_t rank = 0; rank < locals.size(); ++rank) {
    if (locals[rank] == "0") ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Json rates_of_this_host(const World& world, std::uint64_t resent) {
  if (world.local_rank() != 0) return nullptr;
  Json notes = Json::array();
  const unsigned processors = std::thread::hardware_concurrency();
  const double load = load_average();
  if (load > 1.5 * processors) notes.push_back(fmt::format("load {:.0f} on {} processors", load, processors));
  if (resent > 0) notes.push_back(fmt::format("{} TCP segments sent again", resent));
  if (const auto errors = network_errors(); errors > 0) notes.push_back(fmt::format("{} network errors", errors));
  return {{"name", world.hostname()}, {"rank", world.rank()}, {"notes", notes}};
}

Measured measure(const World& world, const DoctorOptions& options) {
  Measured measured;
  measured.differences = check_hosts(world, facts_of_gpus(world));
  world.barrier();
  double processor = 0.0;
  double memory = 0.0;
  if (world.local_rank() == 0) {
    processor = processor_gflops(options.seconds / 8.0);
    memory = memory_gb_per_s(options.seconds / 8.0);
  }
  const std::uint64_t before = resent_segments();
  measured.links = probe_ring(world, first_ranks(world), options.seconds);
  Json mine = rates_of_this_host(world, resent_segments() - before);
  if (!mine.is_null()) {
    mine["processor_gflops"] = processor;
    mine["memory_gb_per_s"] = memory;
  }
  for (const std::string& text : world.gather(mine.dump())) {
    const Json host = Json::parse(text);
    if (host.is_null()) continue;
    measured.hosts.push_back({host["name"], host["rank"], host["processor_gflops"], host["memory_gb_per_s"],
                              host["notes"].get<std::vector<std::string>>()});
  }
  return measured;
}

Json show(const World& world, const Measured& measured) {
  Json results = Json::array();
  std::map<int, std::string> names;
  const Table hosts({{"host", 20}, {"processor (GFLOP/s)", 19}, {"memory (GB/s)", 13}});
  std::string text = hosts.header();
  for (const HostRates& host : measured.hosts) {
    names[host.rank] = host.name;
    text += hosts.row(
        {host.name, fmt::format("{:.2f}", host.processor_gflops), fmt::format("{:.2f}", host.memory_gb_per_s)});
    results.push_back({{"kind", "host"},
                       {"host", host.name},
                       {"gflops", host.processor_gflops},
                       {"memory_gbs", host.memory_gb_per_s}});
  }
  const Table links({{"from", 20}, {"to", 20}, {"GB/s", 8}, {"latency (us)", 12}});
  if (!measured.links.empty()) text += '\n' + links.header();
  for (const LinkRate& link : measured.links) {
    text += links.row({names[link.from], names[link.to], fmt::format("{:.4f}", link.gb_per_s),
                       fmt::format("{:.1f}", link.latency_us)});
    results.push_back({{"kind", "link"},
                       {"from", names[link.from]},
                       {"to", names[link.to]},
                       {"bandwidth_gbs", link.gb_per_s},
                       {"latency_us", link.latency_us}});
  }
  print(world, text + '\n');
  return results;
}

}  // namespace

std::vector<std::string> diagnosis(const std::vector<HostRates>& hosts, const std::vector<LinkRate>& links,
                                   double tolerance) {
  return Diagnosis(hosts, links, tolerance).lines();
}

void run_doctor(const World& world, const CommonOptions& common, const DoctorOptions& options) {
  const ResultFile file(world, common.json);
  const Measured measured = measure(world, options);
  if (world.rank() != 0) return;
  Json result = {{"benchmark", "doctor"}, {"ranks", world.size()}, {"nodes", world.nodes()}};
  result["results"] = show(world, measured);
  result["differences"] = measured.differences;
  for (const std::string& line : measured.differences) print(world, line + '\n');
  if (measured.differences.empty()) print(world, "The hosts have the same program, libraries, networks and time\n");
  const auto lines = diagnosis(measured.hosts, measured.links, options.tolerance);
  result["diagnosis"] = lines;
  for (const std::string& line : lines) print(world, line + '\n');
  file.write(result);
}

}  // namespace ddptrain::bench
