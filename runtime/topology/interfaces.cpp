#include "runtime/topology/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <system_error>

#include "runtime/topology/sysfs.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

/// Inodes of the sockets that this process has open.
std::set<std::string> own_sockets(const fs::path& procfs) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& file : fs::directory_iterator(procfs / "self" / "fd", error)) {
    const std::string target = fs::read_symlink(file.path(), error).string();
    if (target.rfind("socket:[", 0) == 0) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// Local IPv4 addresses, in network byte order, of this process's established TCP connections.
std::set<std::uint32_t> addresses_in_use(const fs::path& procfs) {
  const std::set<std::string> mine = own_sockets(procfs);
  std::set<std::uint32_t> addresses;
  std::ifstream table(procfs / "self" / "net" / "tcp");
  std::string line;
  std::getline(table, line);  // headings
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, skipped, inode;
    fields >> number >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skipped;
    fields >> inode;
    if (state != "01" || mine.count(inode) == 0) continue;
    // A connection of a host to itself goes by loopback, whatever its address.
    if (local.substr(0, 8) == remote.substr(0, 8)) continue;
    addresses.insert(static_cast<std::uint32_t>(std::stoul(local.substr(0, 8), nullptr, 16)));
  }
  return addresses;
}

std::string network_of(std::uint32_t address, std::uint32_t mask) {
  const in_addr network = {address & mask};
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &network, text, sizeof(text));
  return fmt::format("{}/{}", text, std::popcount(mask));
}

std::uint64_t errors_of(const fs::path& folder) {
  std::uint64_t sum = 0;
  for (const char* name : {"rx_errors", "tx_errors", "rx_crc_errors"}) {
    sum += value_in<std::uint64_t>(folder / "statistics" / name).value_or(0);
  }
  return sum;
}

}  // namespace

std::vector<NetworkInterface> network_interfaces(const fs::path& sysfs, const fs::path& procfs) {
  const std::set<std::uint32_t> used = addresses_in_use(procfs);
  std::vector<NetworkInterface> interfaces;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return interfaces;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_netmask == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    if ((entry->ifa_flags & IFF_UP) == 0 || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    const auto bits = [](const sockaddr* address) {
      return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr;
    };
    const fs::path folder = sysfs / "class" / "net" / entry->ifa_name;
    NetworkInterface& found = interfaces.emplace_back();
    found.name = entry->ifa_name;
    found.network = network_of(bits(entry->ifa_addr), bits(entry->ifa_netmask));
    found.mtu = value_in<int>(folder / "mtu").value_or(0);
    const int speed = value_in<int>(folder / "speed").value_or(-1);
    if (speed > 0) found.speed_gbit = speed / 1000.0;
    found.in_use = used.count(bits(entry->ifa_addr)) > 0;
    found.errors = errors_of(folder);
  }
  std::sort(interfaces.begin(), interfaces.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return interfaces;
}

std::uint64_t resent_segments(const fs::path& procfs) {
  std::ifstream table(procfs / "self" / "net" / "snmp");
  std::string names, values;
  while (std::getline(table, names) && std::getline(table, values)) {
    if (names.rfind("Tcp:", 0) != 0) continue;
    std::istringstream of_names(names), of_values(values);
    std::string name, value;
    while (of_names >> name && of_values >> value) {
      if (name == "RetransSegs") return std::stoull(value);
    }
  }
  return 0;
}

}  // namespace ddptrain
