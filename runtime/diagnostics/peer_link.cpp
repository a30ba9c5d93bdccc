#include "runtime/diagnostics/peer_link.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>
#include <utility>

namespace ddptrain {
namespace {

bool is_loopback(const sockaddr_in& address) { return ntohl(address.sin_addr.s_addr) >> 24 == 127; }

}  // namespace

PeerLink::PeerLink() : socket_(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  sockaddr_in any{};
  any.sin_family = AF_INET;
  if (bind(socket_.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0) socket_ = Descriptor();
}

std::string PeerLink::addresses() const {
  sockaddr_in own{};
  socklen_t length = sizeof(own);
  ifaddrs* interfaces = nullptr;
  if (getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 || getifaddrs(&interfaces) != 0) {
    return {};
  }
  std::string bytes;
  for (const ifaddrs* each = interfaces; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    own.sin_addr = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    bytes.append(reinterpret_cast<const char*>(&own), sizeof(own));
  }
  freeifaddrs(interfaces);
  return bytes;
}

void PeerLink::connect(std::uint64_t key, int rank, const std::vector<std::string>& addresses,
                       const std::vector<std::string>& hosts) {
  key_ = key;
  rank_ = rank;
  peers_.assign(addresses.size(), {});
  const std::string& own_host = hosts[static_cast<std::size_t>(rank)];
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    std::vector<sockaddr_in> all(addresses[i].size() / sizeof(sockaddr_in));
    if (!all.empty()) std::memcpy(all.data(), addresses[i].data(), addresses[i].size());
    if (hosts[i] != own_host) std::erase_if(all, is_loopback);
    peers_[i].addresses = std::move(all);
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
    return beat;
  }
}

}  // namespace ddptrain
