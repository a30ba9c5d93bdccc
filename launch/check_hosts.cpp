#include "launch/check_hosts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/core/mapped_file.h"
#include "runtime/device/device.h"
#include "runtime/topology/gpu_selection.h"
#include "runtime/topology/interfaces.h"

namespace ddptrain {
namespace {

constexpr double kClockTolerance = 0.5;  // seconds

std::string hash_of_program() {
  const MappedFile program("/proc/self/exe");
  return xxh3_128(program.data(), program.size()).substr(0, 12);
}

std::string or_none(const std::string& text) { return text.empty() ? "none" : text; }

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

/// The MTU of each network on which this host is.
std::vector<HostFact> facts_of_networks() {
  std::set<std::string> networks;
  std::set<std::string> mtus;
  std::set<std::string> used;
  for (const NetworkInterface& interface : network_interfaces()) {
    networks.insert(interface.network);
    mtus.insert(fmt::format("{} on {}", interface.mtu, interface.network));
    if (interface.in_use) used.insert(interface.network);
  }
  return {{"the list of networks", or_none(fmt::format("{}", fmt::join(networks, ", "))),
           "Name those that all hosts have (mpirun --mca btl_tcp_if_include NETWORK, NCCL_SOCKET_IFNAME)"},
          {"the network that MPI took", fmt::format("{}", fmt::join(used, ", ")),
           "Choose one for all (mpirun --mca btl_tcp_if_include NETWORK)"},
          {"the MTU", or_none(fmt::format("{}", fmt::join(mtus, ", "))),
           "Give a network the same MTU on all hosts (ip link set dev NAME mtu BYTES)"}};
}

double now() {
  const auto since_1970 = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since_1970).count();
}

/// The value that most hosts have; of equal numbers, that of the first host.
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

double median_clock(const std::vector<HostFacts>& hosts) {
  std::vector<double> clocks;
  for (const HostFacts& host : hosts) clocks.push_back(host.clock);
  std::nth_element(clocks.begin(), clocks.begin() + static_cast<std::ptrdiff_t>((clocks.size() - 1) / 2), clocks.end());
  return clocks[(clocks.size() - 1) / 2];
}

}  // namespace

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

std::vector<std::string> host_differences(const std::vector<HostFacts>& hosts) {
  std::vector<std::string> lines;
  for (std::size_t fact = 0; fact < hosts.front().facts.size(); ++fact) {
    const std::string usual = usual_value(hosts, fact);
    for (const HostFacts& host : hosts) {
      const HostFact& here = host.facts.at(fact);
      if (here.value == usual || here.value.empty() || usual.empty()) continue;
      lines.push_back(
          fmt::format("{}: {} is {}, and {} elsewhere. {}.", host.host, here.what, here.value, usual, here.advice));
    }
  }
  const double usual = median_clock(hosts);
  for (const HostFacts& host : hosts) {
    const double ahead = host.clock - usual;
    if (std::abs(ahead) < kClockTolerance) continue;
    lines.push_back(fmt::format("{}: its clock is {:.1f} s {}. Set it by NTP (chronyc tracking).", host.host,
                                std::abs(ahead), ahead > 0.0 ? "ahead" : "behind"));
  }
  return lines;
}

std::vector<std::string> check_hosts(const World& world, const std::vector<HostFact>& more) {
  nlohmann::json mine = nlohmann::json::array();
  world.agree([&] {
    if (world.local_rank() != 0) return;
    std::vector<HostFact> facts = facts_of_this_host();
    facts.insert(facts.end(), more.begin(), more.end());
    for (const HostFact& fact : facts) mine.push_back({fact.what, fact.value, fact.advice});
  });
  world.barrier();
  const double clock = now();
  const auto texts = world.gather(mine.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  const auto names = world.gather(world.hostname());
  const auto clocks = world.gather(fmt::format("{}", clock));
  std::vector<HostFacts> hosts;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto facts = nlohmann::json::parse(texts[rank]);
    if (facts.empty()) continue;
    HostFacts& host = hosts.emplace_back(HostFacts{names[rank], {}, std::stod(clocks[rank])});
    for (const auto& fact : facts) host.facts.push_back({fact.at(0), fact.at(1), fact.at(2)});
  }
  return hosts.empty() ? std::vector<std::string>{} : host_differences(hosts);
}

}  // namespace ddptrain
