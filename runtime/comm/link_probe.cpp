#include "runtime/comm/link_probe.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <sstream>
#include <utility>

#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPart = 1 << 18;  // bytes of a message
constexpr int kLatencyTrips = 50;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// A ring of n, in rounds in which nobody has two neighbours: places of the first of each pair.
std::vector<std::vector<std::size_t>> rounds_of_ring(std::size_t n) {
  const std::size_t links = n == 2 ? 1 : n;
  std::vector<std::vector<std::size_t>> rounds(links % 2 == 1 && links > 1 ? 3 : 2);
  for (std::size_t place = 0; place < links; ++place) {
    const bool last = place + 1 == links && rounds.size() == 3;
    rounds[last ? 2 : place % 2].push_back(place);
  }
  return rounds;
}

class Prober {
 public:
  Prober(MPI_Comm comm, int rank) : comm_(comm), rank_(rank), buffer_(kPart) {}

  /// Called on both ranks; the rate is known at `from`.
  LinkRate one_way(int from, int to, double seconds) {
    LinkRate rate{from, to};
    if (rank_ == from) {
      rate.latency_us = 1e6 * trips(to) / (2.0 * kLatencyTrips);
      rate.gb_per_s = send_for(to, seconds);
    } else {
      answer(from);
      receive(from);
    }
    return rate;
  }

 private:
  double trips(int to) {
    const auto start = Clock::now();
    for (int trip = 0; trip < kLatencyTrips; ++trip) {
      send(8, to);
      receive(8, to);
    }
    return seconds_since(start);
  }

  void answer(int from) {
    for (int trip = 0; trip < kLatencyTrips; ++trip) {
      receive(8, from);
      send(8, from);
    }
  }

  /// GB/s. The first byte of a message says whether it is the last one, which the receiver acknowledges.
  double send_for(int to, double seconds) {
    const auto start = Clock::now();
    double bytes = 0.0;
    for (bool last = false; !last; bytes += kPart) {
      last = seconds_since(start) > seconds;
      buffer_[0] = last ? 1 : 0;
      send(kPart, to);
    }
    receive(8, to);
    return bytes / seconds_since(start) / 1e9;
  }

  void receive(int from) {
    do {
      receive(kPart, from);
    } while (buffer_[0] == 0);
    send(8, from);
  }

  void send(int bytes, int to) { DDP_MPI_CHECK(MPI_Send(buffer_.data(), bytes, MPI_BYTE, to, 0, comm_)); }
  void receive(int bytes, int from) {
    DDP_MPI_CHECK(MPI_Recv(buffer_.data(), bytes, MPI_BYTE, from, 0, comm_, MPI_STATUS_IGNORE));
  }

  MPI_Comm comm_;
  int rank_;
  std::vector<char> buffer_;
};

}  // namespace

std::vector<LinkRate> probe_ring(const World& world, const std::vector<int>& ranks, double seconds) {
  if (ranks.size() < 2) return {};
  const auto rounds = rounds_of_ring(ranks.size());
  const double of_direction = seconds / (2.0 * static_cast<double>(rounds.size()));
  Prober prober(MpiAccess::comm(world), world.rank());
  std::vector<LinkRate> mine;
  for (const auto& round : rounds) {
    world.quiet_barrier();  // those without a partner leave the processors alone
    for (const std::size_t place : round) {
      const int a = ranks[place];
      const int b = ranks[(place + 1) % ranks.size()];
      for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
        if (world.rank() != from && world.rank() != to) continue;
        const LinkRate rate = prober.one_way(from, to, of_direction);
        if (world.rank() == from) mine.push_back(rate);
      }
    }
  }
  std::vector<LinkRate> all;
  for (const std::string& text :
       world.all_gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(LinkRate)})) {
    const std::size_t before = all.size();
    all.resize(before + text.size() / sizeof(LinkRate));
    if (!text.empty()) std::memcpy(all.data() + before, text.data(), text.size());
  }
  return all;
}

}  // namespace ddptrain
