#include "runtime/diagnostics/peer_link.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <spdlog/fmt/fmt.h>
#include <sys/socket.h>

#include <cstddef>
#include <sstream>

namespace ddptrain {
namespace {

std::string text_of(const in_addr& address) {
  char text[INET_ADDRSTRLEN] = "";
  inet_ntop(AF_INET, &address, text, sizeof(text));
  return text;
}

/// IPv4 addresses of this host, 127.0.0.1 among them.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return addresses;
  for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    addresses.push_back(text_of(reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr));
  }
  freeifaddrs(interfaces);
  return addresses;
}

bool is_loopback(const sockaddr_in& address) { return ntohl(address.sin_addr.s_addr) >> 24 == 127; }

}  // namespace

PeerLink::PeerLink() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0) socket_ = Descriptor();
}

std::string PeerLink::address() const {
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  if (getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return {};
  std::string text = fmt::format("{}", ntohs(own.sin_port));
  for (const std::string& address : own_addresses()) text += " " + address;
  return text;
}

void PeerLink::connect(std::uint64_t key, int rank, const std::vector<std::string>& addresses,
                       const std::vector<std::string>& hosts) {
  key_ = key;
  rank_ = rank;
  peers_.assign(addresses.size(), {});
  const auto own = static_cast<std::size_t>(rank);
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    std::istringstream in(addresses[i]);
    std::uint16_t port = 0;
    in >> port;
    for (std::string text; in >> text;) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_port = htons(port);
      if (inet_pton(AF_INET, text.c_str(), &address.sin_addr) != 1) continue;
      if (!is_loopback(address) || hosts[i] == hosts[own]) peers_[i].addresses.push_back(address);
    }
  }
}

void PeerLink::send(int to, Beat beat) {
  beat.key = key_;
  beat.rank = rank_;
  for (const sockaddr_in& address : peers_[static_cast<std::size_t>(to)].addresses) {
    // A rank that cannot be reached is noticed by its silence.
    (void)!sendto(socket_.get(), &beat, sizeof(beat), 0, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
}

void PeerLink::send_to_all(const Beat& beat) {
  for (int to = 0; to < static_cast<int>(peers_.size()); ++to) {
    if (to != rank_) send(to, beat);
  }
}

std::optional<Beat> PeerLink::receive() {
  Beat beat;
  sockaddr_in from{};
  socklen_t length = sizeof(from);
  for (;;) {
    const auto bytes = recvfrom(socket_.get(), &beat, sizeof(beat), 0, reinterpret_cast<sockaddr*>(&from), &length);
    if (bytes < 0) return std::nullopt;
    const bool ours = bytes == sizeof(beat) && beat.key == key_ && beat.rank >= 0 && beat.rank != rank_ &&
                      static_cast<std::size_t>(beat.rank) < peers_.size();
    if (!ours) continue;
    Peer& peer = peers_[static_cast<std::size_t>(beat.rank)];
    if (!peer.heard) peer.addresses = {from};
    peer.heard = true;
    for (auto* text : {&beat.collective[sizeof(beat.collective) - 1], &beat.phase[sizeof(beat.phase) - 1],
                       &beat.waiting_for[sizeof(beat.waiting_for) - 1]}) {
      *text = '\0';
    }
    return beat;
  }
}

}  // namespace ddptrain
