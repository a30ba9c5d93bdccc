#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/tensor.h"

/// Sums over ranks of several hosts by messages between two ranks, for networks that are slower than a host's memory:
/// inside the hosts first, and each byte over the network as few times as possible.

namespace ddptrain {

/// Which ranks share a host. Hosts are numbered by their lowest rank.
class HostLayout {
 public:
  explicit HostLayout(const std::vector<int>& host_of_rank);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  /// Ranks of each host that exchange with other hosts, its lowest: as many as the smallest host has.
  int owners() const { return owners_; }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  int owner(int host, int index) const { return ranks(host)[static_cast<std::size_t>(index)]; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  bool all_own() const { return owners_ * hosts() == static_cast<int>(host_of_.size()); }
  /// Place of the owner among all owners, in the order of ranks.
  int part_of(int host, int index) const {
    return part_of_[static_cast<std::size_t>(host)][static_cast<std::size_t>(index)];
  }

 private:
  std::vector<std::vector<int>> ranks_;
  std::vector<int> host_of_;
  std::vector<std::vector<int>> part_of_;
  int owners_ = 0;
};

/// One collective over the ranks of a layout. The values are as many parts as there are owners. An all-reduce takes
/// four steps; a reduce-scatter is the first two, an all-gather the last two:
///
/// 1. On each host, the owner with index i gets the parts of all hosts' owners with index i from the other ranks, and
///    adds them in the order of ranks.
/// 2. Each owner gets its own part from the owners with its index on the other hosts, and adds in the order of hosts.
/// 3. It sends the sum to them.
/// 4. On each host, every owner sends all parts of its index to the other ranks.
///
/// In an all-reduce between two hosts, steps 2 and 3 are one: each owner sends what it has of both parts to the owner
/// with its index on the other host, and both add. The bytes, the sums and their bits are the same, and no sum waits
/// for an answer.
///
/// bf16 and f32 are added in f32, f64 in f64. Where messages between hosts have another type than the values, what each
/// host contributes to a sum (that of its owner, too) and the sum are rounded to that type. So every rank gets the
/// same bits, and they depend on nothing but which rank is on which host.
///
/// Parts are cut into slices, which go through the steps one behind the other, so that the network does not wait for
/// additions. Only so many are on their way between hosts at a time that a collective which starts later, and ends
/// earlier, waits behind no more than these. A slice is small enough for MPI to send it without asking first whether it
/// is expected: the answer would wait behind what is being sent the other way.
class HierarchicalCollective {
 public:
  struct Work {
    Tensor values;        ///< In place; outlives the collective.
    DType between_hosts;  ///< That of values, or bf16 for f32.
    bool scatters;        ///< Steps 1 and 2. Without all_own(), only together with steps 3 and 4.
    bool gathers;
  };
  static constexpr int kTags = 4;  ///< It uses so many, from its first one on.

  /// Starts it. All outlive it; `memory` grows to what it needs.
  HierarchicalCollective(const HostLayout& layout, int rank, MPI_Comm comm, int first_tag, const Work& work,
                         std::vector<char>& memory);
  HierarchicalCollective(const HierarchicalCollective&) = delete;
  HierarchicalCollective& operator=(const HierarchicalCollective&) = delete;

  /// Lets messages make progress and adds what has arrived; true once this rank has nothing left to do.
  bool progress();

 private:
  enum Step : int { to_owner, to_host, sum, from_owner };

  /// Messages of one step, on their way.
  class Messages {
   public:
    void send(const void* data, std::int64_t bytes, int to, int tag, MPI_Comm comm);
    void receive(void* data, std::int64_t bytes, int from, int tag, MPI_Comm comm);
    /// One call takes all that has arrived: MPI may read one message from a socket each time that it is asked.
    bool done();

   private:
    std::vector<MPI_Request> requests_;
    std::size_t finished_ = 0;  ///< The first ones.
  };

  /// Of one slice.
  struct Traffic {
    Messages to_owners;
    Messages from_ranks;
    Messages to_hosts;
    Messages from_hosts;
    Messages sums;
    Messages from_owners;
  };

  /// Elements of a slice in the part of the owner with this index on that host.
  struct Piece {
    std::int64_t begin;
    std::int64_t count;
  };

  bool is_owner() const { return local_ < layout_.owners(); }
  bool rounds() const { return work_.between_hosts != work_.values.dtype; }
  /// Steps 2 and 3 are one.
  bool exchanges() const { return layout_.hosts() == 2 && work_.scatters && work_.gathers; }
  std::size_t slices_on_their_way() const;
  int tag(Step step) const { return first_tag_ + step; }
  Piece piece(std::size_t slice, int host, int index) const;
  std::int64_t bytes(std::size_t slice, int host, int index) const;
  std::int64_t sent_bytes(std::size_t slice, int host) const;
  void* values(std::size_t slice, int host, int index) const;
  char* from_rank(std::size_t slice, int local, int host) const;
  char* between(std::size_t slice, int kind, int host) const;
  /// What that host contributes to this host's part; where exchanges(): what the other host contributes to that part.
  void* incoming(std::size_t slice, int host) const { return between(slice, 0, host); }
  void* outgoing(std::size_t slice, int host) const;
  void* arriving(std::size_t slice, int host) const;
  template <class Visit>
  void other_hosts(const Visit& visit) const;
  template <class Visit>
  void other_ranks(const Visit& visit) const;

  std::size_t memory_of_slice() const;
  void start_scattering(std::size_t slice);
  void add_ranks(std::size_t slice);
  void send_part(std::size_t slice);
  void add_hosts(std::size_t slice);
  void add_exchanged(std::size_t slice);
  void send_sum(std::size_t slice);
  void receive_sums(std::size_t slice);
  void share(std::size_t slice);
  void receive_shared(std::size_t slice);
  void round(std::size_t slice, int host) const;
  void widen(std::size_t slice, int host, const void* from) const;

  const HostLayout& layout_;
  MPI_Comm comm_;
  int first_tag_;
  Work work_;
  int host_;
  const std::vector<int>& peers_;  ///< The ranks of this host.
  int local_;                      ///< This rank's place among them: its index where it is an owner.
  std::int64_t part_size_;         ///< Elements.
  std::int64_t slice_size_;        ///< Elements of each part.
  char* memory_ = nullptr;
  std::vector<Traffic> slices_;
  Messages sums_sent_;
  Messages shared_;
  /// How many slices are past each point.
  std::size_t ranks_added_ = 0;
  std::size_t parts_sent_ = 0;
  std::size_t hosts_added_ = 0;
  std::size_t sums_awaited_ = 0;
  std::size_t sums_shared_ = 0;
  std::size_t owners_awaited_ = 0;
  std::size_t owners_heard_ = 0;
};

}  // namespace ddptrain
