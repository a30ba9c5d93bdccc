#include "runtime/topology/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "runtime/topology/sysfs.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

/// The address that getsockname() or getpeername() tells of an IPv4 socket, in network byte order.
template <class Ask>
std::optional<std::uint32_t> address_of(int descriptor, Ask ask) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  const bool told = ask(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0;
  return told && address.sin_family == AF_INET ? std::optional(address.sin_addr.s_addr) : std::nullopt;
}

/// Local addresses of this process's connections. A connection of a host to itself goes by loopback, whatever its
/// address, and does not count.
std::set<std::uint32_t> addresses_in_use() {
  std::set<std::uint32_t> addresses;
  std::error_code error;
  for (const auto& file : fs::directory_iterator("/proc/self/fd", error)) {
    const int descriptor = std::atoi(file.path().filename().c_str());
    const auto local = address_of(descriptor, getsockname);
    const auto remote = address_of(descriptor, getpeername);
    if (local && remote && local != remote) addresses.insert(*local);
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

std::vector<NetworkInterface> network_interfaces() {
  const std::set<std::uint32_t> used = addresses_in_use();
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
    const fs::path folder = fs::path("/sys/class/net") / entry->ifa_name;
    NetworkInterface& found = interfaces.emplace_back();
    found.network = network_of(bits(entry->ifa_addr), bits(entry->ifa_netmask));
    found.mtu = value_in<int>(folder / "mtu").value_or(0);
    const int speed = value_in<int>(folder / "speed").value_or(-1);
    if (speed > 0) found.speed_gbit = speed / 1000.0;
    found.in_use = used.count(bits(entry->ifa_addr)) > 0;
    found.errors = errors_of(folder);
  }
  return interfaces;
}

}  // namespace ddptrain
