#pragma once

#include <cstddef>
#include <memory>
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

  virtual ~HierarchicalCollective() = default;
  /// Lets messages make progress and adds what has arrived; true once this rank has nothing left to do.
  virtual bool progress() = 0;
};

/// Starts it. All outlive it; `memory` grows to what it needs.
std::unique_ptr<HierarchicalCollective> start_hierarchical(const HostLayout& layout, int rank, MPI_Comm comm,
                                                           int first_tag, const HierarchicalCollective::Work& work,
                                                           std::vector<char>& memory);

}  // namespace ddptrain
