#include "benchmarks/ddpbench/doctor/link_probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "benchmarks/ddpbench/session.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"

namespace ddptrain::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kPart = 1 << 18;  // bytes of a message
constexpr int kLatencyTrips = 50;

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
  explicit Prober(const World& world)
      : device_(make_cpu_device({})), communicator_(make_mpi_communicator(world, *device_)), buffer_(kPart) {}

  /// Called on both ranks; the rate is known at `from`.
  LinkRate one_way(int from, int to, double seconds) {
    LinkRate rate{from, to};
    if (communicator_->rank() == from) {
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

  Message message(int bytes, int rank) { return {{buffer_.data(), DType::u8, {bytes}}, rank}; }
  void send(int bytes, int to) { exchange({message(bytes, to)}, {}); }
  void receive(int bytes, int from) { exchange({}, {message(bytes, from)}); }
  void exchange(const std::vector<Message>& sends, const std::vector<Message>& receives) {
    communicator_->wait(communicator_->exchange(sends, receives, device_->compute_stream()));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  std::vector<char> buffer_;
};

}  // namespace

std::vector<LinkRate> probe_ring(const World& world, const std::vector<int>& ranks, double seconds) {
  if (ranks.size() < 2) return {};
  const auto rounds = rounds_of_ring(ranks.size());
  const double of_direction = seconds / (2.0 * static_cast<double>(rounds.size()));
  Prober prober(world);
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
  return world.all_gather(mine);
}

}  // namespace ddptrain::bench
