#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/device/peer_inboxes.h"

/// Collectives and messages between ranks, through NCCL or MPI. Each library has a folder next to this header.

namespace ddptrain {

/// NCCL 2.28's symmetric kernels scatter and gather wrong values if the size of a shard is not a multiple of it.
inline constexpr std::size_t kShardBytes = 16;

/// Memory that the GPUs of all ranks can read and write.
struct PeerMemory {
  Buffer mine;                 ///< This rank's memory, zeroed.
  std::vector<void*> of_rank;  ///< The addresses of rank r's memory for this rank's GPU. Empty: no such memory.

  PeerInboxes inboxes(int rank) const;  ///< Views for kernels of rank `rank`.
};

/// Values to send to one rank, or the place for values from it.
struct Message {
  Tensor values;
  int rank;
};

/// Collectives over device memory. Every rank calls the same methods in the same order with the same sizes. There
/// are two exceptions. With MPI on CPUs, ranks may call all_gather() at different points of that order. Only the ranks
/// that a message names call exchange().
///
/// A collective starts after the work that is queued on `stream`. `from` and `to` either do not overlap, or the
/// collective is in place: all_reduce_sum(), reduce_sum() and broadcast() have one tensor as both; for the others, the
/// smaller tensor is this rank's shard of the larger one. The forms with one tensor are in place.
///
/// Errors throw Error with the failing call. A communicator is destroyed before its device and world.
class Communicator {
 public:
  using Ticket = std::uint64_t;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;  ///< NCCL or MPI; empty for one rank.

  /// Zeroed memory for which collectives are fastest. Collective. With NCCL, error after a graph has captured
  /// collectives and memory of this communicator was freed, unless NCCL_GRAPH_REGISTER is 0: NCCL would send from or
  /// receive into the freed memory if the new memory has its address. So a communicator serves one trainer.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Whether allocate() gives symmetric memory: every rank's GPU can read and write it, and all-reduces of it are
  /// fastest.
  virtual bool symmetric() const { return false; }
  /// Why a library with symmetric memory does not give it here. Empty if it does, or if the library has none.
  virtual std::string why_not_symmetric() const { return {}; }
  /// `bytes` bytes per rank that kernels of every rank's GPU can read and write. The addresses have been tried: each
  /// rank has read what every other rank wrote. Empty on all ranks if memory is not symmetric or any rank asks for 0
  /// bytes. Collective; waits.
  virtual PeerMemory allocate_for_peers(std::size_t /*bytes*/) { return {}; }

  /// Sets the algorithm and protocol of all_reduce_sum() by NCCL's name (RING_LL); empty: NCCL chooses. Returns false
  /// and changes nothing if the library or this job does not have it. Collective; waits.
  virtual bool choose_algorithm(const std::string& name) { return name.empty(); }

  /// to = the sum of all ranks' `from`. f64, f32 or bf16.
  virtual Ticket all_reduce_sum(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// On rank `root`: to = the sum of all ranks' `from`. The `to` of other ranks stays as it is. f64, f32 or bf16.
  virtual Ticket reduce_sum(const Tensor& from, const Tensor& to, int root, Stream stream) = 0;
  /// `from` has size() equal shards. to = the sum of all ranks' shard rank(). In place, the other shards are
  /// unspecified afterwards. f64, f32 or bf16. Error if size() does not divide the number of elements, or if shards in
  /// symmetric memory are not a multiple of kShardBytes.
  virtual Ticket reduce_scatter_sum(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// to = the `from` of all ranks, in the order of ranks. Any type.
  virtual Ticket all_gather(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// to = shard rank() of the `from` of all ranks, in the order of ranks. Any type. Both tensors have size() equal
  /// shards and do not overlap. Error if size() does not divide the number of elements. Either both come from
  /// allocate() or neither: NCCL sends registered memory without a copy, and waits forever for a receiver with other
  /// memory.
  virtual Ticket all_to_all(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// The same, but shard rank() of `to` is unspecified afterwards.
  virtual Ticket swap_shards(const Tensor& from, const Tensor& to, Stream stream) {
    return all_to_all(from, to, stream);
  }
  /// all_gather() of each of `all` in place. On every rank, the shards of other ranks were free when it called the last
  /// swap_shards() on this stream. So the ranks need not tell each other again.
  virtual Ticket gather_after_swap(const std::vector<Tensor>& all, Stream stream);
  /// Whether copy engines carry out swap_shards() into this memory, and all_gather() in place. Ranks may queue such
  /// calls on several streams, which then run at the same time.
  virtual bool copies_into(const Tensor& /*to*/) const { return false; }
  /// to = the `from` of rank `root`. Any type.
  virtual Ticket broadcast(const Tensor& from, const Tensor& to, int root, Stream stream) = 0;

  /// Sends and receives these messages. Any type. Only the ranks that are named take part. Messages from one rank to
  /// another arrive in the order of the calls; a message has the same type and size on both sides. The ticket is done
  /// when all messages are. If only one side of a message is memory of allocate(), NCCL_GRAPH_REGISTER must be 0.
  virtual Ticket exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Stream stream) = 0;

  Ticket all_reduce_sum(const Tensor& values, Stream stream) { return all_reduce_sum(values, values, stream); }
  Ticket reduce_scatter_sum(const Tensor& values, Stream stream);
  Ticket all_gather(const Tensor& values, Stream stream);
  Ticket broadcast(const Tensor& values, int root, Stream stream) { return broadcast(values, values, root, stream); }

  /// Whether work that is queued on the stream from now on sees the result. NCCL works in stream order, so always true.
  /// With MPI, true once the messages of this ticket have arrived. MPI makes progress in this call.
  virtual bool test(Ticket ticket) = 0;
  /// Returns when test() is true for this ticket and all earlier ones.
  virtual void wait(Ticket ticket) = 0;
  /// Whether a CUDA graph may capture the collectives. MPI's need the host.
  virtual bool capturable() const { return true; }

  /// Throws Error if the library has seen a peer fail.
  virtual void check_health() {}
};

/// This rank's shard of `values` for reduce_scatter_sum() and all_gather(). Error if the shards cannot be equal.
Tensor own_shard(const Communicator& communicator, const Tensor& values);

enum class CommLibrary : std::uint8_t { automatic, nccl, mpi };

struct CommunicatorOptions {
  CommLibrary library = CommLibrary::automatic;  ///< automatic: MPI for CPUs, NCCL for GPUs.
  bool symmetric = true;                         ///< NCCL: use symmetric memory if possible.
  int comm_ctas = 0;                             ///< NCCL: maximum of thread blocks per collective; 0: NCCL chooses.
  /// NCCL 2.28 and newer: copy engines gather and swap shards of symmetric memory. Multiprocessors go on computing.
  bool copy_engines = false;
  bool scatters_sums = false;  ///< reduce_scatter_sum() and all_gather() will be called.
  /// MPI: send f32 sums in bf16 between hosts. With one host, between ranks.
  bool bf16_between_hosts = false;
  /// MPI: number of this rank's host; empty: the world's. If ranks have different hosts, each sends for itself.
  std::optional<int> host = {};
};

/// A communicator for these ranks and this device. With one rank every collective is a copy. Collective. All ranks
/// throw the same UsageError if the library cannot send this device's memory, or if NCCL refuses its NCCL_* variables.
std::unique_ptr<Communicator> make_communicator(const World& world, Device& device,
                                                const CommunicatorOptions& options = {});

/// For one rank.
std::unique_ptr<Communicator> make_self_communicator(Device& device);
/// Uses MPI. CPU memory is sent directly, and computation overlaps as long as test() is called now and then. GPU memory
/// is copied through pinned host memory in stream order. With several hosts, or with
/// bf16_between_hosts, all-reduces are hierarchical and have a fixed order (mpi/hierarchical.h); so are reduce-scatters
/// and all-gathers if every rank exchanges with other hosts. Otherwise the MPI library's collectives are used.
std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Device& device,
                                                    const CommunicatorOptions& options = {});
/// Uses NCCL on the current GPU. UsageError in a build without CUDA. Symmetric memory makes all-reduces below about 16
/// MiB faster. It is used if NCCL maps the memory of all ranks and none of NCCL_ALGO, NCCL_PROTO and NCCL_HOSTID is
/// set, because symmetric kernels ignore them. Buffers are freed before the communicator. If an exception destroys the
/// communicator, it aborts NCCL's running operations.
std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Device& device,
                                                     const CommunicatorOptions& options);
std::string nccl_version();  ///< Empty in a build without CUDA.
std::string nccl_library();  ///< File of the NCCL that this process has loaded; empty if it has none.

}  // namespace ddptrain
