#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/tensor.h"

/// Collectives over several hosts whose network is slower than their memory. They are made of messages between two
/// ranks. They reduce inside each host first, so that the network carries each byte as few times as possible.

namespace ddptrain {

/// Which ranks share a host. Hosts are numbered in the order of their lowest rank.
class HostLayout {
 public:
  explicit HostLayout(const std::vector<int>& host_of_rank);

  int hosts() const { return static_cast<int>(ranks_.size()); }
  /// How many ranks of each host exchange messages with other hosts: as many as the smallest host has. They are the
  /// host's lowest ranks.
  int owners() const { return owners_; }
  const std::vector<int>& ranks(int host) const { return ranks_[static_cast<std::size_t>(host)]; }
  int owner(int host, int index) const { return ranks(host)[static_cast<std::size_t>(index)]; }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  bool all_own() const { return owners_ * hosts() == static_cast<int>(host_of_.size()); }
  /// Index of the owner among the owners of all hosts, in the order of ranks.
  int shard_of(int host, int index) const {
    return shard_of_[static_cast<std::size_t>(host)][static_cast<std::size_t>(index)];
  }

 private:
  std::vector<std::vector<int>> ranks_;
  std::vector<int> host_of_;
  std::vector<std::vector<int>> shard_of_;
  int owners_ = 0;
};

/// One collective over the ranks of a layout. The values have one shard per owner. An all-reduce takes four steps. A
/// reduce-scatter is the first two, an all-gather the last two:
///
/// 1. On each host, the owner with index i gets the shards of all hosts' owners with index i from the other ranks, and
///    adds them in the order of ranks.
/// 2. Each owner gets its own shard from the owners with its index on the other hosts, and adds in the order of hosts.
/// 3. It sends the sum to them.
/// 4. On each host, every owner sends all shards of its index to the other ranks.
///
/// With two hosts, an all-reduce does steps 2 and 3 at once: each owner sends its terms of both shards to the owner
/// with its index on the other host, and both owners add. The network carries the same bytes, the sums have the same
/// bits, and there is one message delay less.
///
/// bf16 and f32 are added in f32, f64 in f64. If messages between hosts have another type than the values, each host's
/// contribution is rounded to that type, also on its owner, and so is the sum. So every rank gets the same bits. They
/// depend only on which rank is on which host.
///
/// Shards are cut into slices, and the slices go through the steps one after another, so that the network does not wait
/// for additions. Only a few slices are between hosts at a time: a collective that starts later and is needed earlier
/// waits for these alone. A slice is small enough for MPI's eager protocol. With rendezvous, the answer to each request
/// would wait behind the data that goes the other way.
class HierarchicalCollective {
 public:
  struct Work {
    Tensor values;        ///< In place; outlives the collective.
    DType between_hosts;  ///< The type of the values, or bf16 for f32 values.
    bool scatters;        ///< Do steps 1 and 2. Without all_own(), `gathers` must be set, too.
    bool gathers;
  };
  static constexpr int kTags = 4;  ///< How many message tags it uses, from `first_tag` on.

  virtual ~HierarchicalCollective() = default;
  /// Lets messages make progress and adds what has arrived. Returns true when this rank is done.
  virtual bool progress() = 0;
};

/// Starts a collective. The arguments outlive it. `memory` grows to the size that it needs.
std::unique_ptr<HierarchicalCollective> start_hierarchical(const HostLayout& layout, int rank, MPI_Comm comm,
                                                           int first_tag, const HierarchicalCollective::Work& work,
                                                           std::vector<char>& memory);

}  // namespace ddptrain
