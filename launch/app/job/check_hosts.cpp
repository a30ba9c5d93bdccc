#include "launch/app/job/check_hosts.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "launch/app/job/choose_device.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/hash.h"
#include "runtime/device/device.h"
#include "runtime/topology/gpu_selection.h"
#include "runtime/topology/interfaces.h"
#include "runtime/topology/machine.h"
#include "runtime/topology/sysfs.h"

namespace ddptrain {
namespace {

std::string hash_of_program() {
  const MappedFile program("/proc/self/exe");
  return xxh3_128(program.data(), program.size()).substr(0, 12);
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

std::string list_of(const std::set<std::string>& values) { return fmt::format("{}", fmt::join(values, ", ")); }

/// InfiniBand and RoCE, such as mlx5_0:1.
std::set<std::string> active_ports() {
  std::set<std::string> ports;
  for (const auto& device : sorted_entries("/sys/class/infiniband")) {
    for (const auto& port : sorted_entries(device / "ports")) {
      const bool active = first_line(port / "state").starts_with("4:");
      if (active) ports.insert(fmt::format("{}:{}", device.filename().string(), port.filename().string()));
    }
  }
  return ports;
}

std::vector<HostFact> facts_of_networks() {
  std::set<std::string> networks, mtus, speeds, used;
  for (const NetworkInterface& interface : network_interfaces()) {
    networks.insert(interface.network);
    mtus.insert(fmt::format("{} on {}", interface.mtu, interface.network));
    if (interface.speed_gbit) speeds.insert(fmt::format("{} Gbit/s on {}", *interface.speed_gbit, interface.network));
    if (interface.in_use) used.insert(interface.network);
  }
  return {
      {"the list of networks", or_none(list_of(networks)),
       "Name those that all hosts have (mpirun --mca btl_tcp_if_include NETWORK, NCCL_SOCKET_IFNAME)"},
      {"the network that MPI took", list_of(used), "Choose one for all (mpirun --mca btl_tcp_if_include NETWORK)"},
      {"the MTU", or_none(list_of(mtus)), "Give a network the same MTU on all hosts (ip link set dev NAME mtu BYTES)"},
      {"the speed of the network card", list_of(speeds),
       "See ethtool NAME there: a bad cable makes cards agree on less"},
      {"the list of active InfiniBand ports", or_none(list_of(active_ports())),
       "See ibstat there, or choose the same for all (NCCL_IB_HCA=NAME,...)"}};
}

std::vector<HostFact> facts_of_this_host() {
  const std::string same_program = "Start the same files everywhere, from a folder that all hosts share";
  std::vector<HostFact> facts = {
      {"the program", hash_of_program(), same_program},
      {"MPI", mpi_version(), "Install the same version"},
      {"NCCL", or_none(nccl_version()), "Install the same version"},
      {"CUDA", or_none(cuda_version()), "Install the same version"},
      {"cuDNN", or_none(cudnn_version()), "Install the same version"},
      {"the GPU driver", or_none(first_line("/sys/module/nvidia/version")), "Install the same driver"},
      {"the number of visible GPUs", std::to_string(visible_gpus()), "See nvidia-smi there, and CUDA_VISIBLE_DEVICES"},
  };
  for (HostFact& fact : facts_of_networks()) facts.push_back(std::move(fact));
  return facts;
}

}  // namespace

std::string usual_value(const std::vector<HostFacts>& hosts, std::size_t fact) {
  std::map<std::string, int> counts;
  for (const HostFacts& host : hosts) ++counts[host.facts.at(fact).value];
  const std::string* best = &hosts.front().facts.at(fact).value;
  for (const HostFacts& host : hosts) {
    const std::string& value = host.facts.at(fact).value;
    if (counts[value] > counts[*best]) best = &value;
  }
  return *best;
}

std::vector<std::string> host_differences(const std::vector<HostFacts>& hosts) {
  std::vector<std::string> lines;
  if (hosts.empty()) return lines;
  for (std::size_t fact = 0; fact < hosts.front().facts.size(); ++fact) {
    const std::string usual = usual_value(hosts, fact);
    for (const HostFacts& host : hosts) {
      const HostFact& here = host.facts.at(fact);
      if (here.value == usual || here.value.empty() || usual.empty()) continue;
      lines.push_back(
          fmt::format("{}: {} is {}, and {} elsewhere. {}.", host.host, here.what, here.value, usual, here.advice));
    }
  }
  return lines;
}

std::vector<HostFacts> gather_host_facts(const World& world, const std::vector<HostFact>& more) {
  nlohmann::json mine = {{"host", world.hostname()}, {"facts", nlohmann::json::array()}};
  world.agree([&] {
    if (world.local_rank() != 0) return;
    std::vector<HostFact> facts = facts_of_this_host();
    facts.insert(facts.end(), more.begin(), more.end());
    for (const HostFact& fact : facts) mine["facts"].push_back({fact.what, fact.value, fact.advice});
  });
  std::vector<HostFacts> hosts;
  for (const std::string& text :
       world.all_gather(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
    const auto of_rank = nlohmann::json::parse(text);
    if (of_rank["facts"].empty()) continue;
    HostFacts& host = hosts.emplace_back(HostFacts{of_rank["host"], {}});
    for (const auto& fact : of_rank["facts"]) host.facts.push_back({fact.at(0), fact.at(1), fact.at(2)});
  }
  return hosts;
}

std::vector<std::string> shared_network_cards(const World& world, const std::string& pci_bus_id) {
  const std::vector<RankOfGpu> ranks = ranks_of_this_host(world, pci_bus_id);
  std::string mine;
  if (world.local_rank() == 0) {
    for (const std::string& line : shared_nic_warnings(world.hostname(), ranks)) mine += line + '\n';
  }
  std::vector<std::string> lines;
  for (const std::string& of_host : world.all_gather(mine)) {
    std::istringstream text(of_host);
    for (std::string line; std::getline(text, line);) lines.push_back(line);
  }
  return lines;
}

}  // namespace ddptrain
