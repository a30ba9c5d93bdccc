#include "runtime/comm/mpi/hierarchical.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <map>
#include <type_traits>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kMessageBytes = std::int64_t{48} << 10;  ///< Open MPI's eager limit for TCP is 64 KiB.
constexpr std::size_t kSlicesOnTheirWay = 8;                    ///< Between hosts, with one message each at a time.
constexpr std::int64_t kAlignment = 64;                         ///< Elements.

std::int64_t divide_up(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }
std::int64_t align(std::int64_t value) { return divide_up(value, kAlignment) * kAlignment; }

float wide(float value) { return value; }
double wide(double value) { return value; }
float wide(Bf16 value) { return to_float(value); }
void narrow(float from, float& to) { to = from; }
void narrow(double from, double& to) { to = from; }
void narrow(float from, Bf16& to) { to = to_bf16(from); }

/// to = the sum of `terms`, added in their order and rounded once to T. `to` may be one of the terms if Result is T.
template <class T, class Result = T>
void add(const std::vector<const void*>& terms, void* to, std::int64_t count) {
  using Sum = decltype(wide(T{}));
  constexpr std::int64_t kAtOnce = 1024;
  Sum sums[kAtOnce];
  for (std::int64_t begin = 0; begin < count; begin += kAtOnce) {
    const std::int64_t some = std::min(kAtOnce, count - begin);
    const T* first = static_cast<const T*>(terms[0]) + begin;
    for (std::int64_t i = 0; i < some; ++i) sums[i] = wide(first[i]);
    for (std::size_t term = 1; term < terms.size(); ++term) {
      const T* values = static_cast<const T*>(terms[term]) + begin;
      for (std::int64_t i = 0; i < some; ++i) sums[i] += wide(values[i]);
    }
    Result* result = static_cast<Result*>(to) + begin;
    for (std::int64_t i = 0; i < some; ++i) {
      T rounded;
      narrow(sums[i], rounded);
      if constexpr (std::is_same_v<Result, T>) {
        result[i] = rounded;
      } else {
        result[i] = wide(rounded);
      }
    }
  }
}

void add(DType dtype, const std::vector<const void*>& terms, void* to, std::int64_t count) {
  switch (dtype) {
    case DType::f64:
      add<double>(terms, to, count);
      break;
    case DType::f32:
      add<float>(terms, to, count);
      break;
    case DType::bf16:
      add<Bf16>(terms, to, count);
      break;
    default:
      fail("sums of {} over MPI: f64, f32 and bf16 only", name_of(dtype));
  }
}

int message_size(std::int64_t bytes) {
  DDP_CHECK(bytes <= std::numeric_limits<int>::max(), "a message of {} bytes; MPI counts to 2^31 - 1", bytes);
  return static_cast<int>(bytes);
}

}  // namespace

HostLayout::HostLayout(const std::vector<int>& host_of_rank) {
  std::map<int, int> number_of;
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto host = number_of.try_emplace(host_of_rank[rank], hosts()).first->second;
    if (host == hosts()) ranks_.emplace_back();
    ranks_[static_cast<std::size_t>(host)].push_back(static_cast<int>(rank));
    host_of_.push_back(host);
  }
  const auto smaller = [](const auto& a, const auto& b) { return a.size() < b.size(); };
  owners_ = static_cast<int>(std::min_element(ranks_.begin(), ranks_.end(), smaller)->size());

  std::vector<int> owners;
  for (const auto& ranks : ranks_) owners.insert(owners.end(), ranks.begin(), ranks.begin() + owners_);
  std::sort(owners.begin(), owners.end());
  for (const auto& ranks : ranks_) {
    auto& shards = shard_of_.emplace_back();
    for (int index = 0; index < owners_; ++index) {
      const auto place = std::lower_bound(owners.begin(), owners.end(), ranks[static_cast<std::size_t>(index)]);
      shards.push_back(static_cast<int>(place - owners.begin()));
    }
  }
}

namespace {

/// The messages of one step.
class Messages {
 public:
  void send(const void* data, std::int64_t bytes, int to, int tag, MPI_Comm comm) {
    if (bytes == 0) return;
    DDP_MPI_CHECK(MPI_Isend(data, message_size(bytes), MPI_BYTE, to, tag, comm, &requests_.emplace_back()));
  }

  void receive(void* data, std::int64_t bytes, int from, int tag, MPI_Comm comm) {
    if (bytes == 0) return;
    DDP_MPI_CHECK(MPI_Irecv(data, message_size(bytes), MPI_BYTE, from, tag, comm, &requests_.emplace_back()));
  }
  /// Tests until a message is missing: MPI may read only one message from a socket in each test.
  bool done() {
    while (finished_ < requests_.size()) {
      int finished = 0;
      DDP_MPI_CHECK(MPI_Test(&requests_[finished_], &finished, MPI_STATUS_IGNORE));
      if (finished == 0) return false;
      ++finished_;
    }
    return true;
  }

 private:
  std::vector<MPI_Request> requests_;
  std::size_t finished_ = 0;  ///< The first this many requests are done.
};

class OverHosts final : public HierarchicalCollective {
 public:
  OverHosts(const HostLayout& layout, int rank, MPI_Comm comm, int first_tag, const Work& work,
            std::vector<char>& memory)
      : layout_(layout),
        comm_(comm),
        first_tag_(first_tag),
        work_(work),
        host_(layout.host_of(rank)),
        peers_(layout.ranks(host_)),
        local_(static_cast<int>(std::find(peers_.begin(), peers_.end(), rank) - peers_.begin())) {
    const std::int64_t count = work.values.size();
    const std::int64_t shards = static_cast<std::int64_t>(layout.hosts()) * layout.owners();
    const bool whole = work.scatters && work.gathers;
    DDP_CHECK(whole || (layout.all_own() && count % shards == 0), "{} values do not divide among the ranks", count);
    shard_size_ = whole ? align(divide_up(count, shards)) : count / shards;
    slice_size_ = std::min(kMessageBytes / static_cast<std::int64_t>(size_of(work.between_hosts)), align(shard_size_));
    slices_.resize(static_cast<std::size_t>(divide_up(shard_size_, slice_size_)));
    if (const std::size_t bytes = slices_.size() * memory_of_slice(); memory.size() < bytes) memory.resize(bytes);
    memory_ = memory.data();

    if (!work.scatters || !is_owner()) skip({Point::ranks_added, Point::terms_sent, Point::hosts_added});
    if (!is_owner()) skip({Point::sums_awaited, Point::sums_shared});
    for (std::size_t slice = 0; slice < slices_.size(); ++slice) {
      if (work.scatters) start_scattering(slice);
      if (work.scatters || !is_owner()) continue;
      round(slice, host_);
      send_sum(slice);
    }
  }

  bool progress() override {
    pass(
        Point::ranks_added, slices_.size(), [](Traffic& slice) { return slice.from_ranks.done(); },
        [this](std::size_t slice) { add_ranks(slice); });
    pass(
        Point::terms_sent, std::min(passed(Point::ranks_added), passed(Point::sums_shared) + slices_on_their_way()),
        [](Traffic&) { return true; }, [this](std::size_t slice) { send_terms(slice); });
    pass(
        Point::hosts_added, passed(exchanges() ? Point::terms_sent : Point::ranks_added),
        [this](Traffic& slice) { return slice.from_hosts.done() && (!exchanges() || slice.to_hosts.done()); },
        [this](std::size_t slice) { add_hosts(slice); });
    pass(
        Point::sums_awaited, passed(Point::terms_sent), [](Traffic& slice) { return slice.to_hosts.done(); },
        [this](std::size_t slice) { receive_sums(slice); });
    pass(
        Point::sums_shared, std::min(passed(Point::hosts_added), passed(Point::sums_awaited)),
        [](Traffic& slice) { return slice.sums.done(); }, [this](std::size_t slice) { share(slice); });
    pass(
        Point::owners_awaited, slices_.size(), [](Traffic& slice) { return slice.to_owners.done(); },
        [this](std::size_t slice) { receive_shared(slice); });
    pass(
        Point::owners_heard, passed(Point::owners_awaited), [](Traffic& slice) { return slice.from_owners.done(); },
        [](std::size_t) {});
    return has_passed_all(Point::sums_shared) && has_passed_all(Point::owners_heard) && sums_sent_.done() &&
           shared_.done();
  }

 private:
  /// What has been done with a slice on this rank. The slices pass each point one after another. The first five are
  /// about the shards of this rank as an owner, the last two about the shards of the other owners of this host.
  enum class Point : std::uint8_t {
    ranks_added,     ///< Step 1: the terms of this host's ranks are added.
    terms_sent,      ///< Step 2: this host's terms are on their way to the other hosts.
    hosts_added,     ///< Step 2: the terms of all hosts are added. In step 3 the sum is on its way.
    sums_awaited,    ///< Step 3: the sums of the other hosts may arrive, because the terms in their place are sent.
    sums_shared,     ///< Step 4: the sums are complete, and on their way to the other ranks of this host.
    owners_awaited,  ///< Step 4: the sums of other owners may arrive, because this rank's terms in their place are
                     ///< sent.
    owners_heard,    ///< Step 4: they have arrived.
  };
  static constexpr std::size_t kPoints = 7;

  std::size_t& passed(Point point) { return passed_[static_cast<std::size_t>(point)]; }
  bool has_passed_all(Point point) { return passed(point) == slices_.size(); }
  void skip(std::initializer_list<Point> points) {
    for (const Point point : points) passed(point) = slices_.size();
  }
  /// Lets slices pass `point` up to slice number `end`, as long as `may_pass` holds for the next one. `act` handles it.
  template <class MayPass, class Act>
  void pass(Point point, std::size_t end, const MayPass& may_pass, const Act& act) {
    for (std::size_t& next = passed(point); next < end && may_pass(slices_[next]); ++next) act(next);
  }

  enum Step : int { to_owner, to_host, sum, from_owner };

  /// The messages of one slice.
  struct Traffic {
    Messages to_owners;
    Messages from_ranks;
    Messages to_hosts;
    Messages from_hosts;
    Messages sums;
    Messages from_owners;
  };

  /// The elements of a slice in one owner's shard.
  struct Piece {
    std::int64_t begin;
    std::int64_t count;
  };

  bool is_owner() const { return local_ < layout_.owners(); }
  bool rounds() const { return work_.between_hosts != work_.values.dtype; }
  /// Whether steps 2 and 3 are done at once.
  bool exchanges() const { return layout_.hosts() == 2 && work_.scatters && work_.gathers; }
  int tag(Step step) const { return first_tag_ + step; }

  /// If two hosts exchange, a slice has two messages at a time. With rounded values, the network carries half the bytes
  /// during the same compute. Then it may idle now and then; it matters more that later sums wait briefly.
  std::size_t slices_on_their_way() const {
    if (!exchanges()) return kSlicesOnTheirWay;
    return rounds() ? 1 : kSlicesOnTheirWay / 2;
  }

  Piece piece(std::size_t slice, int host, int index) const {
    const std::int64_t begin = static_cast<std::int64_t>(slice) * slice_size_;
    const std::int64_t first = layout_.shard_of(host, index) * shard_size_ + begin;
    const std::int64_t most = std::min(slice_size_, shard_size_ - begin);
    return {first, std::clamp<std::int64_t>(work_.values.size() - first, 0, most)};
  }

  std::int64_t bytes(std::size_t slice, int host, int index) const {
    return piece(slice, host, index).count * static_cast<std::int64_t>(size_of(work_.values.dtype));
  }

  /// Bytes between hosts of the shard of this rank's counterpart on `host`.
  std::int64_t sent_bytes(std::size_t slice, int host) const {
    return piece(slice, host, local_).count * static_cast<std::int64_t>(size_of(work_.between_hosts));
  }

  void* values(std::size_t slice, int host, int index) const {
    const std::int64_t element = static_cast<std::int64_t>(size_of(work_.values.dtype));
    return static_cast<char*>(work_.values.data) + piece(slice, host, index).begin * element;
  }

  /// The memory of a slice has, first, the other local ranks' terms of every host's shard. Then come the terms that
  /// each host sends, in the type between hosts. If that type is not the type of the values, the terms for each host
  /// and the sums from each host follow.
  std::size_t memory_of_slice() const {
    const std::size_t between = (!rounds() ? 1 : exchanges() ? 2 : 3) * size_of(work_.between_hosts);
    const std::size_t pieces = (peers_.size() - 1) * size_of(work_.values.dtype) + between;
    return static_cast<std::size_t>(align(slice_size_) * layout_.hosts()) * pieces;
  }

  char* from_rank(std::size_t slice, int local, int host) const {
    const std::int64_t place = (local < local_ ? local : local - 1) * layout_.hosts() + host;
    const std::int64_t element = static_cast<std::int64_t>(size_of(work_.values.dtype));
    return memory_ + slice * memory_of_slice() + place * align(slice_size_) * element;
  }

  char* between(std::size_t slice, int kind, int host) const {
    const std::int64_t place = kind * layout_.hosts() + host;
    const std::int64_t element = static_cast<std::int64_t>(size_of(work_.between_hosts));
    return from_rank(slice, static_cast<int>(peers_.size()), 0) + place * align(slice_size_) * element;
  }

  /// The terms that `host` sends for this host's shard; if exchanges(), the other host's terms of `host`'s shard.
  void* incoming(std::size_t slice, int host) const { return between(slice, 0, host); }

  /// The terms that this host sends for the shard of `host`. For its own shard, later the sum.
  void* outgoing(std::size_t slice, int host) const {
    return rounds() ? between(slice, 1, host) : values(slice, host, local_);
  }

  /// The sum of the shard of `host`.
  void* arriving(std::size_t slice, int host) const {
    return rounds() ? between(slice, 2, host) : values(slice, host, local_);
  }

  void round(std::size_t slice, int host) const {
    if (!rounds()) return;
    const auto* from = static_cast<const float*>(values(slice, host, local_));
    auto* to = static_cast<Bf16*>(outgoing(slice, host));
    const std::int64_t count = piece(slice, host, local_).count;
    for (std::int64_t i = 0; i < count; ++i) to[i] = to_bf16(from[i]);
  }

  void widen(std::size_t slice, int host, const void* from) const {
    if (!rounds()) return;
    auto* to = static_cast<float*>(values(slice, host, local_));
    const std::int64_t count = piece(slice, host, local_).count;
    for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(static_cast<const Bf16*>(from)[i]);
  }

  /// Calls visit(host, the owner on that host with this rank's index).
  template <class Visit>
  void other_hosts(const Visit& visit) const {
    for (int host = 0; host < layout_.hosts(); ++host) {
      if (host != host_) visit(host, layout_.owner(host, local_));
    }
  }

  /// Calls visit(local rank, rank).
  template <class Visit>
  void other_ranks(const Visit& visit) const {
    for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
      if (local != local_) visit(local, peers_[static_cast<std::size_t>(local)]);
    }
  }

  void start_scattering(std::size_t slice) {
    Traffic& traffic = slices_[slice];
    other_ranks([&](int local, int rank) {
      for (int host = 0; host < layout_.hosts(); ++host) {
        if (local < layout_.owners()) {
          traffic.to_owners.send(values(slice, host, local), bytes(slice, host, local), rank, tag(to_owner), comm_);
        }
        if (is_owner()) {
          traffic.from_ranks.receive(from_rank(slice, local, host), bytes(slice, host, local_), rank, tag(to_owner),
                                     comm_);
        }
      }
    });
    if (!is_owner()) return;
    other_hosts([&](int host, int rank) {
      if (exchanges()) {
        for (int shard : {0, 1}) {
          traffic.from_hosts.receive(incoming(slice, shard), sent_bytes(slice, shard), rank, tag(to_host), comm_);
        }
      } else {
        traffic.from_hosts.receive(incoming(slice, host), sent_bytes(slice, host_), rank, tag(to_host), comm_);
      }
    });
  }

  void add_ranks(std::size_t slice) {
    for (int host = 0; host < layout_.hosts(); ++host) {
      std::vector<const void*> terms;
      for (int local = 0; local < static_cast<int>(peers_.size()); ++local) {
        terms.push_back(local == local_ ? values(slice, host, local_) : from_rank(slice, local, host));
      }
      if (terms.size() > 1)
        add(work_.values.dtype, terms, values(slice, host, local_), piece(slice, host, local_).count);
      round(slice, host);
    }
  }

  void send_terms(std::size_t slice) {
    other_hosts([&](int host, int rank) {
      for (int shard = 0; shard < layout_.hosts(); ++shard) {
        if (shard != host && !exchanges()) continue;
        slices_[slice].to_hosts.send(outgoing(slice, shard), sent_bytes(slice, shard), rank, tag(to_host), comm_);
      }
    });
  }

  void add_exchanged(std::size_t slice) {
    for (int shard : {0, 1}) {
      std::vector<const void*> terms = {incoming(slice, shard), incoming(slice, shard)};
      terms[static_cast<std::size_t>(host_)] = outgoing(slice, shard);
      const std::int64_t count = piece(slice, shard, local_).count;
      void* sum = values(slice, shard, local_);
      if (rounds()) {
        add<Bf16, float>(terms, sum, count);
      } else {
        add(work_.values.dtype, terms, sum, count);
      }
    }
  }

  void add_hosts(std::size_t slice) {
    if (exchanges()) {
      add_exchanged(slice);
      return;
    }
    std::vector<const void*> terms;
    for (int host = 0; host < layout_.hosts(); ++host) {
      terms.push_back(host == host_ ? outgoing(slice, host) : incoming(slice, host));
    }
    add(work_.between_hosts, terms, outgoing(slice, host_), piece(slice, host_, local_).count);
    widen(slice, host_, outgoing(slice, host_));
    if (work_.gathers) send_sum(slice);
  }

  void send_sum(std::size_t slice) {
    other_hosts([&](int, int rank) {
      sums_sent_.send(outgoing(slice, host_), sent_bytes(slice, host_), rank, tag(sum), comm_);
    });
  }

  void receive_sums(std::size_t slice) {
    if (!work_.gathers || exchanges()) return;
    other_hosts([&](int host, int rank) {
      slices_[slice].sums.receive(arriving(slice, host), sent_bytes(slice, host), rank, tag(sum), comm_);
    });
  }

  void share(std::size_t slice) {
    if (!work_.gathers) return;
    if (!exchanges()) other_hosts([&](int host, int) { widen(slice, host, arriving(slice, host)); });
    other_ranks([&](int, int rank) {
      for (int host = 0; host < layout_.hosts(); ++host) {
        shared_.send(values(slice, host, local_), bytes(slice, host, local_), rank, tag(from_owner), comm_);
      }
    });
  }

  void receive_shared(std::size_t slice) {
    if (!work_.gathers) return;
    for (int index = 0; index < layout_.owners(); ++index) {
      if (index == local_) continue;
      for (int host = 0; host < layout_.hosts(); ++host) {
        slices_[slice].from_owners.receive(values(slice, host, index), bytes(slice, host, index),
                                           layout_.owner(host_, index), tag(from_owner), comm_);
      }
    }
  }

  const HostLayout& layout_;
  MPI_Comm comm_;
  int first_tag_;
  Work work_;
  int host_;
  const std::vector<int>& peers_;  ///< The ranks of this host.
  int local_;                      ///< This rank's index among them.
  std::int64_t shard_size_;        ///< Elements.
  std::int64_t slice_size_;        ///< Elements of each shard.
  char* memory_ = nullptr;
  std::vector<Traffic> slices_;
  Messages sums_sent_;
  Messages shared_;
  std::array<std::size_t, kPoints> passed_{};  ///< Per point: this many slices have passed it.
};

}  // namespace

std::unique_ptr<HierarchicalCollective> start_hierarchical(const HostLayout& layout, int rank, MPI_Comm comm,
                                                           int first_tag, const HierarchicalCollective::Work& work,
                                                           std::vector<char>& memory) {
  return std::make_unique<OverHosts>(layout, rank, comm, first_tag, work, memory);
}

}  // namespace ddptrain
