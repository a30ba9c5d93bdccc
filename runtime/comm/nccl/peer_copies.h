#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"

namespace ddptrain {

/// Copies between the memories of GPUs that reach each other, by the copy engines. These copies run beside kernels that
/// fill a GPU; a collective's kernel would wait until multiprocessors are free. All ranks make the same calls in the
/// same order. Each copy starts when all ranks have reached it, and ends when all ranks have. CUDA graphs may capture
/// copies.
class PeerCopies {
 public:
  /// `flags`: flag_bytes(ranks) bytes of each rank.
  PeerCopies(int rank, PeerMemory flags);
  ~PeerCopies();
  /// Whether the driver lets streams write and wait for flags here.
  static bool are_supported();
  static std::size_t flag_bytes(std::size_t ranks) { return 2 * ranks * sizeof(std::uint32_t); }

  /// Tells where the memory of each rank is that corresponds to `mine`. All of it is there as long as `owner`.
  void add(const Buffer& mine, std::vector<void*> of_rank, const std::weak_ptr<void>& owner);
  /// Whether add() has told where this is on all ranks.
  bool reach(const Tensor& values) const { return find(values.data) != nullptr; }

  // reach(to) is true. Errors throw Error.
  /// Shard r of `to` = shard rank() of the `from` of rank r, for each other rank r.
  void swap_shards(const Tensor& from, const Tensor& to, Stream stream);
  /// Shard r of `to` = that shard of rank r, for each other rank r.
  void gather_shards(const Tensor& to, Stream stream);

 private:
  struct Memory {
    const char* mine;
    std::size_t bytes;
    std::vector<void*> of_rank;
    std::weak_ptr<void> owner;
  };

  struct Queues;

  const Memory* find(const void* address) const;
  void* address_on(std::size_t rank, const void* address) const;
  /// Copies each other rank's shard of `from` to `place`, an address of this rank, on that rank.
  template <class Shard>
  void send(char* place, std::size_t bytes, Stream stream, const Shard& shard_for);
  void meet(std::size_t phase, Stream stream);

  std::size_t rank_;
  PeerMemory flags_;  ///< Two phases of a flag per rank.
  std::vector<Memory> memories_;
  std::unique_ptr<Queues> queues_;
};

}  // namespace ddptrain
