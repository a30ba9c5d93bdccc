#include <sched.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "benchmarks/ddpbench/doctor/device_rates.h"
#include "benchmarks/ddpbench/doctor/diagnosis.h"
#include "benchmarks/ddpbench/doctor/host_state.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/table.h"
#include "launch/app/job/check_hosts.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/diagnostics/nccl_probe.h"
#include "runtime/topology/interfaces.h"
#include "runtime/topology/machine.h"
#include "runtime/topology/numa_binding.h"

namespace ddptrain::bench {
namespace {

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

/// The driver is asked, which takes a while.
std::vector<HostFact> facts_of_gpus(const World& world) {
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

struct Found {
  Measured measured;
  std::vector<HostFact> common;          ///< Values that most hosts have.
  std::vector<std::string> differences;  ///< Other values of some hosts, and faults.
  bool hosts_differ = false;
  std::string nccl;  ///< Algorithm that NCCL chose; empty if NCCL does not run.
};

/// The lowest rank of each host.
std::vector<int> first_ranks(const World& world) {
  std::vector<int> ranks;
  const auto locals = world.all_gather(std::vector{world.local_rank()});
  for (std::size_t rank = 0; rank < locals.size(); ++rank) {
    if (locals[rank] == 0) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

/// The ranks of each host.
std::vector<std::vector<int>> ranks_of_hosts(const World& world) {
  std::vector<std::vector<int>> hosts(static_cast<std::size_t>(world.nodes()));
  const auto nodes = world.all_gather(std::vector{world.node()});
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    hosts[static_cast<std::size_t>(nodes[rank])].push_back(static_cast<int>(rank));
  }
  return hosts;
}

// --- a rank
// ------------------------------------------------------------------------------------------------------------

double seconds_on_processors() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// MHz, as Linux tells it now; nothing if it does not.
std::optional<double> processor_clock(unsigned processor) {
  std::ifstream info("/proc/cpuinfo");
  unsigned seen = 0;
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("cpu MHz", 0) == 0 && seen++ == processor) return std::stod(line.substr(line.find(':') + 1));
  }
  return std::nullopt;
}

/// Distance from the NUMA node of this process to the NUMA node of its GPU, as the firmware reports it. 10: one node.
std::optional<double> numa_distance_to(const std::string& pci_bus_id) {
  const auto gpu = numa_node_of(normalized_pci_bus_id(pci_bus_id));
  unsigned processor = 0;
  unsigned node = 0;
  if (!gpu || getcpu(&processor, &node) != 0) return std::nullopt;
  std::ifstream row(fmt::format("/sys/devices/system/node/node{}/distance", node));
  double distance = 0.0;
  for (int i = 0; i <= *gpu; ++i) row >> distance;
  return row ? std::optional(distance) : std::nullopt;
}

/// Measurements that a rank takes without the others.
class RankProbe {
 public:
  RankProbe(const World& world, Device& device, std::string pci_bus_id, double seconds)
      : world_(world), device_(device), gpu_(std::move(pci_bus_id)), seconds_(seconds) {}

  /// All ranks at once, as in training.
  void compute() {
    std::optional<SensorSampler> sampler;
    if (ReadSensors read = gpu_sensors(gpu_)) sampler.emplace(std::move(read), std::chrono::milliseconds(20));
    world_.barrier();
    const auto start = std::chrono::steady_clock::now();
    const double before = seconds_on_processors();
    gflops_ = 1e-9 * product_flops(device_, gpu_.empty() ? 256 : 8192, seconds_);
    const double on_processor = seconds_on_processors() - before;
    const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (sampler) load_ = sampler->take();
    if (!gpu_.empty()) return;
    facts_.push_back({"time on a processor", 100.0 * on_processor / passed, "%"});
    if (const auto mhz = processor_clock(static_cast<unsigned>(std::max(sched_getcpu(), 0)))) {
      facts_.push_back({"processor clock", *mhz, " MHz"});
    }
  }

  /// A rank of each host at a time: ranks may share what leads to host memory.
  void copy() {
    const int turns = static_cast<int>(world_.max(world_.local_size()));
    for (int turn = 0; turn < turns; ++turn) {
      world_.quiet_barrier();
      if (turn != world_.local_rank()) continue;
      copies_ = copy_gb_per_s(device_, seconds_ / 2.0, [&] { links_ = gpu_links(gpu_).value_or(GpuLinks{}); });
    }
    world_.quiet_barrier();
  }

  Json report(const std::vector<std::string>& notes) const {
    std::vector<RankFact> facts = facts_;
    std::vector<std::string> findings;
    if (!gpu_.empty()) {
      const std::string name = fmt::format("{}, GPU {} of rank {}", world_.hostname(), gpu_, world_.rank());
      for (RankFact& fact : gpu_facts(links_, load_)) facts.push_back(std::move(fact));
      findings = gpu_findings(name, links_, load_);
      const auto distance = numa_distance_to(gpu_);
      if (distance) facts.push_back({"NUMA distance to its GPU", *distance, ""});
      if (distance.value_or(10.0) > 10.0) {
        findings.push_back(
            fmt::format("{}: the rank runs on another NUMA node than its GPU (distance {:g}, 10 is near). "
                        "Let it use the processors of that node (mpirun --bind-to none).",
                        name, *distance));
      }
    }
    Json listed = Json::array();
    for (const RankFact& fact : facts) listed.push_back({fact.what, fact.value, fact.unit});
    return {{"host", world_.hostname()}, {"rank", world_.rank()}, {"gpu", gpu_},          {"gflops", gflops_},
            {"copy_gbs", copies_},       {"facts", listed},       {"findings", findings}, {"notes", notes}};
  }

 private:
  const World& world_;
  Device& device_;
  std::string gpu_;
  double seconds_;
  double gflops_ = 0.0;
  double copies_ = 0.0;
  SensorWindow load_;
  GpuLinks links_;
  std::vector<RankFact> facts_;
};

std::vector<std::string> notes_of_host(std::uint64_t resent) {
  std::vector<std::string> notes;
  const unsigned processors = std::thread::hardware_concurrency();
  const double load = load_average();
  if (load > 1.5 * processors) notes.push_back(fmt::format("load {:.0f} on {} processors", load, processors));
  if (resent > 0) notes.push_back(fmt::format("{} TCP segments sent again", resent));
  if (const auto errors = network_errors(); errors > 0) notes.push_back(fmt::format("{} network errors", errors));
  return notes;
}

// --- all ranks
// ---------------------------------------------------------------------------------------------------------

/// Rates of all-reduces over disjoint sets of ranks, at the same time; on every rank. Collective.
std::vector<double> rates_of_sets(const World& world, Device& device, const std::vector<std::vector<int>>& sets,
                                  double seconds) {
  int mine = static_cast<int>(sets.size());
  for (std::size_t set = 0; set < sets.size(); ++set) {
    if (std::count(sets[set].begin(), sets[set].end(), world.rank()) > 0) mine = static_cast<int>(set);
  }
  double rate = 0.0;
  {
    const std::unique_ptr<World> part = world.split(mine);
    if (mine < static_cast<int>(sets.size())) rate = all_reduce_gb_per_s(*part, device, seconds);
    world.quiet_barrier();
  }
  const auto of_ranks = world.all_gather(std::vector{rate});
  std::vector<double> rates;
  for (const std::vector<int>& set : sets) rates.push_back(of_ranks[static_cast<std::size_t>(set.front())]);
  return rates;
}

Halving halve_hosts(const World& world, Device& device, const DoctorOptions& options) {
  const auto ranks = ranks_of_hosts(world);
  std::vector<int> hosts(ranks.size());
  std::iota(hosts.begin(), hosts.end(), 0);
  return halve({hosts}, options.tolerance, [&](const std::vector<std::vector<int>>& sets) {
    std::vector<std::vector<int>> of_ranks;
    for (const std::vector<int>& set : sets) {
      auto& all = of_ranks.emplace_back();
      for (const int host : set) {
        all.insert(all.end(), ranks[static_cast<std::size_t>(host)].begin(),
                   ranks[static_cast<std::size_t>(host)].end());
      }
    }
    return rates_of_sets(world, device, of_ranks, options.seconds / 8.0);
  });
}

/// GPUs alone: between ranks on processors, there is nothing but memory.
Halving halve_gpus(const World& world, Device& device, const DoctorOptions& options) {
  if (device.kind() == DeviceKind::cpu) return {};
  return halve(ranks_of_hosts(world), options.tolerance, [&](const std::vector<std::vector<int>>& sets) {
    return rates_of_sets(world, device, sets, options.seconds / 8.0);
  });
}

/// Between neighbours in a ring of hosts; while a way seems slow, the best of three measurements. Collective.
std::vector<LinkRate> probe_hosts(const World& world, const DoctorOptions& options) {
  const std::vector<int> ranks = first_ranks(world);
  std::vector<LinkRate> links = probe_ring(world, ranks, options.seconds);
  const auto by_rate = [](const LinkRate& a, const LinkRate& b) { return a.gb_per_s < b.gb_per_s; };
  for (int more = 0; more < 2 && !links.empty(); ++more) {
    const auto [slowest, fastest] = std::minmax_element(links.begin(), links.end(), by_rate);
    if (slowest->gb_per_s >= options.tolerance * fastest->gb_per_s) break;
    const std::vector<LinkRate> again = probe_ring(world, ranks, options.seconds);
    for (std::size_t i = 0; i < links.size(); ++i) {
      links[i].gb_per_s = std::max(links[i].gb_per_s, again[i].gb_per_s);
      links[i].latency_us = std::min(links[i].latency_us, again[i].latency_us);
    }
  }
  return links;
}

/// Reads NCCL's log on rank 0. Collective. Must be called before the first use of NCCL.
std::string ask_nccl(const World& world, Device& device) {
  if (device.kind() == DeviceKind::cpu || world.size() == 1) return "";
  const NcclProbe probe = probe_nccl(world, device);
  if (world.rank() != 0) return "";
  std::istringstream text(probe.log);
  const NcclUsage usage = usage_of(read_nccl_log(text));
  return fmt::format("NCCL {}: {}", usage.version, usage.transport);
}

void compare_hosts(const World& world, const DoctorOptions& options, Found& found) {
  std::vector<HostFact> more;
  world.agree([&] {
    if (world.local_rank() != 0) return;
    more = facts_of_gpus(world);
    for (const std::string& path : options.data) more.push_back(data_fact(path));
  });
  const auto hosts = gather_host_facts(world, more);
  found.differences = host_differences(hosts);
  found.hosts_differ = !found.differences.empty();
  found.common = hosts.front().facts;
  for (std::size_t fact = 0; fact < found.common.size(); ++fact) found.common[fact].value = usual_value(hosts, fact);
}

void add(Found& found, const std::string& text) {
  const Json rank = Json::parse(text);
  RankRates& rates = found.measured.ranks.emplace_back();
  rates = {rank["host"], rank["rank"], rank["gpu"], rank["gflops"], rank["copy_gbs"], {}, rank["notes"]};
  for (const Json& fact : rank["facts"]) rates.facts.push_back({fact[0], fact[1], fact[2]});
  for (const Json& line : rank["findings"]) found.differences.push_back(line);
}

/// All that is found is on rank 0.
Found examine(const World& world, const CommonOptions& common, const DoctorOptions& options) {
  Found found;
  compare_hosts(world, options, found);
  const DeviceKind kind = choose_device(world, common.device, common.share_gpu);
  const std::string gpu = kind == DeviceKind::cuda ? cuda_pci_bus_id(own_gpu(world)) : "";
  bind_to_numa(gpu);
  const auto device = make_device(world, common, kind, default_precision(kind));
  if (kind == DeviceKind::cuda && world.nodes() > 1) {
    for (std::string& line : shared_network_cards(world, gpu)) found.differences.push_back(std::move(line));
  }
  found.nccl = ask_nccl(world, *device);
  RankProbe probe(world, *device, gpu, options.seconds / 4.0);
  probe.compute();
  probe.copy();
  const std::uint64_t before = resent_segments();
  found.measured.links = probe_hosts(world, options);
  found.measured.hosts = halve_hosts(world, *device, options);
  found.measured.gpus = halve_gpus(world, *device, options);
  for (const std::string& text : world.all_gather(probe.report(notes_of_host(resent_segments() - before)).dump())) {
    add(found, text);
  }
  return found;
}

// --- what is said
// ------------------------------------------------------------------------------------------------------

void show_common(const World& world, const Found& found) {
  std::vector<std::vector<std::string>> rows;
  for (const HostFact& fact : found.common) {
    if (!fact.value.empty()) rows.push_back({fact.what, fact.value});
  }
  print(world, text_table(rows) + (found.nccl.empty() ? "" : found.nccl + '\n') + '\n');
}

Json show_ranks(const World& world, const std::vector<RankRates>& ranks) {
  Json results = Json::array();
  const Table table({{"host", 20}, {"rank", 5}, {"products (GFLOP/s)", 18}, {"copies (GB/s)", 13}});
  print(world, table.header());
  for (const RankRates& rank : ranks) {
    print(world, table.row({rank.host, std::to_string(rank.rank), fmt::format("{:.2f}", rank.gflops),
                            fmt::format("{:.2f}", rank.copy_gb_per_s)}));
    results.push_back({{"kind", "rank"},
                       {"host", rank.host},
                       {"rank", rank.rank},
                       {"gpu", rank.gpu},
                       {"gflops", rank.gflops},
                       {"copy_gbs", rank.copy_gb_per_s}});
    for (const RankFact& fact : rank.facts) results.back()["facts"][fact.what] = fact.value;
  }
  return results;
}

void show_links(const World& world, const Measured& measured, Json& results) {
  if (measured.links.empty()) return;
  const auto host = [&](int rank) { return measured.ranks[static_cast<std::size_t>(rank)].host; };
  const Table table({{"from", 20}, {"to", 20}, {"GB/s", 8}, {"latency (us)", 12}});
  print(world, '\n' + table.header());
  for (const LinkRate& link : measured.links) {
    print(world, table.row({host(link.from), host(link.to), fmt::format("{:.4f}", link.gb_per_s),
                            fmt::format("{:.1f}", link.latency_us)}));
    results.push_back({{"kind", "link"},
                       {"from", host(link.from)},
                       {"to", host(link.to)},
                       {"bandwidth_gbs", link.gb_per_s},
                       {"latency_us", link.latency_us}});
  }
  const auto slowest = std::min_element(measured.links.begin(), measured.links.end(),
                                        [](const auto& a, const auto& b) { return a.gb_per_s < b.gb_per_s; });
  print(world, fmt::format("Slowest pair: {} to {}\n", host(slowest->from), host(slowest->to)));
}

void show_sets(const World& world, const char* kind, const Halving& halving,
               const std::function<std::string(int)>& name, Json& results) {
  if (halving.sets.empty()) return;
  std::vector<std::vector<std::string>> rows = {{"busbw (GB/s)", "of an all-reduce over"}};
  for (const SetRate& set : halving.sets) {
    std::vector<std::string> names;
    for (const int unit : set.units) names.push_back(name(unit));
    rows.push_back({fmt::format("{:.4f}", set.gb_per_s), fmt::format("{}", fmt::join(names, ", "))});
    results.push_back({{"kind", "all-reduce"}, {"of", kind}, {"names", names}, {"busbw_gbs", set.gb_per_s}});
  }
  print(world, '\n' + text_table(rows));
}

Json show(const World& world, const Found& found) {
  const Measured& measured = found.measured;
  show_common(world, found);
  Json results = show_ranks(world, measured.ranks);
  show_links(world, measured, results);
  const auto hosts = host_names(measured.ranks);
  show_sets(
      world, "hosts", measured.hosts, [&](int host) { return hosts[static_cast<std::size_t>(host)]; }, results);
  show_sets(
      world, "GPUs", measured.gpus, [](int rank) { return fmt::format("rank {}", rank); }, results);
  print(world, "\n");
  return results;
}

}  // namespace

int run_doctor(const World& world, const CommonOptions& common, const DoctorOptions& options) {
  const ResultFile file(world, common);
  const Found found = examine(world, common, options);
  if (world.rank() != 0) return 0;
  Json result = {{"benchmark", "doctor"}, {"ranks", world.size()}, {"nodes", world.nodes()}};
  for (const HostFact& fact : found.common) result["common"][fact.what] = fact.value;
  if (!found.nccl.empty()) result["nccl"] = found.nccl;
  result["results"] = show(world, found);
  result["differences"] = found.differences;
  for (const std::string& line : found.differences) print(world, line + '\n');
  if (found.differences.empty()) print(world, "The hosts have the same program, libraries and networks\n");
  const auto lines = diagnosis(found.measured, options.tolerance);
  result["diagnosis"] = lines;
  for (const std::string& line : lines) print(world, line + '\n');
  file.write(result);
  const bool none_slow = lines.front().rfind("No slow one", 0) == 0;
  return none_slow && !found.hosts_differ ? 0 : 1;
}

}  // namespace ddptrain::bench
