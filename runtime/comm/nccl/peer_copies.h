#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"

namespace ddptrain {

/// Copies between the memories of GPUs that reach each other, by the copy engines. These copies run at the same time as
/// kernels that fill a GPU; a collective's kernel would wait until multiprocessors are free. A call's copies start when
/// all ranks have reached the call, and later work on the stream starts when the copies of all ranks have arrived. All
/// ranks make the same calls in the same order, on corresponding streams. Calls on different streams do not wait for
/// each other. CUDA graphs may capture the calls, but not the first one on a stream.
class PeerCopies {
 public:
  /// `flags`: flag_bytes(ranks) bytes of each rank.
  PeerCopies(int rank, PeerMemory flags);
  ~PeerCopies();
  /// Whether the driver lets streams write and wait for flags here.
  static bool are_supported();
  static std::size_t flag_bytes(std::size_t ranks) { return kMostStreams * kPhases * ranks * sizeof(std::uint32_t); }

  /// Makes `mine` known: of_rank[r] is the address of the corresponding memory of rank r. Valid while `owner` exists.
  void add(const Buffer& mine, std::vector<void*> of_rank, const std::weak_ptr<void>& owner);
  /// Whether this lies in memory that add() has made known.
  bool reach(const Tensor& values) const { return find(values.data) != nullptr; }

  // These require reach(to). Errors throw Error.
  /// Shard r of `to` = this rank's shard of the `from` of rank r, for each other rank r.
  void swap_shards(const Tensor& from, const Tensor& to, Stream stream);
  /// Shard r of `to` = that shard of the `to` of rank r, for each other rank r.
  void gather_shards(const Tensor& to, Stream stream);
  /// The same for several tensors. On every rank, the shards of other ranks are free since its last swap_shards() on
  /// this stream: the copies start at once. A call follows a swap_shards().
  void gather_after_swap(const std::vector<Tensor>& all, Stream stream);

 private:
  struct Memory {
    const char* mine;
    std::size_t bytes;
    std::vector<void*> of_rank;
    std::weak_ptr<void> owner;
  };

  /// What the calls on one stream need.
  struct Lane;

  static constexpr std::size_t kMostStreams = 4, kPhases = 3;

  const Memory* find(const void* address) const;
  void* address_on(std::size_t rank, const void* address) const;
  /// That of `stream`; a new one for a new stream.
  Lane& lane_of(Stream stream);
  /// Copies shard_for(r) to the memory of rank r that corresponds to `place`, for each other rank r. Does not meet().
  template <class Shard>
  void send(char* place, std::size_t bytes, Lane& lane, const Shard& shard_for);
  void send_own_shard(const Tensor& to, Lane& lane);
  /// Later work on the stream waits until all ranks have come here. On a stream, two meetings that follow each other
  /// have different phases.
  enum class Phase : std::size_t { begin, end, end_after_swap };
  void meet(Phase phase, const Lane& lane);

  std::size_t rank_;
  PeerMemory flags_;  ///< [kMostStreams, kPhases, ranks]
  std::vector<Memory> memories_;
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace ddptrain
