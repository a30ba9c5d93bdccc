#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/device/peer_inboxes.h"

/// The collectives of data-parallel training, by NCCL or MPI. Each library is a folder beside this header.

namespace ddptrain {

/// NCCL 2.28's symmetric kernels scatter and gather wrong values where parts are not a multiple of it.
inline constexpr std::size_t kPartBytes = 16;

/// Memory of this rank that the GPUs of all ranks reach.
struct PeerMemory {
  Buffer mine;                 ///< Zeroed.
  std::vector<void*> of_rank;  ///< Rank r's memory, as this rank's GPU reaches it; empty: there is none.

  PeerInboxes inboxes(int rank) const;  ///< Views for kernels of rank `rank`.
};

/// What goes to one rank or comes from it.
struct Message {
  Tensor values;
  int rank;
};

/// Collectives over device memory. Every rank calls the same methods in the same order with the same sizes; over MPI
/// on CPUs the order of all_gather() calls among the others may differ between ranks.
/// `from` and `to` are different memory, or `to` is as large as the result in place: the same memory for
/// all_reduce_sum() and broadcast(), this rank's part of the larger of the two for the others. The forms with one
/// tensor are in place. Errors throw Error with the failing call. Made after, and destroyed before, device and world.
class Communicator {
 public:
  using Ticket = std::uint64_t;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string library() const = 0;  ///< NCCL or MPI; empty where there is none.

  /// Memory (zeroed) from which collectives are fastest; collective.
  virtual Buffer allocate(std::size_t bytes) = 0;
  /// Whether allocate() gives symmetric memory: every rank's GPU reads and writes it, and sums are fastest from it.
  virtual bool symmetric() const { return false; }
  /// Why this library, which has symmetric memory, does not give it here; empty where it does or has none.
  virtual std::string why_not_symmetric() const { return {}; }
  /// Memory of `bytes` bytes per rank that every rank's GPU reads and writes from within kernels. The addresses were
  /// tried: each rank has read what every other rank wrote. Empty, on all ranks alike, where memory is not symmetric or
  /// where any rank asks for 0 bytes. Collective; waits.
  virtual PeerMemory allocate_for_peers(std::size_t /*bytes*/) { return {}; }

  /// The algorithm and protocol of all_reduce_sum() from now on, by NCCL's name (RING_LL); empty: NCCL's choice. False
  /// if the library or this job does not have it: the choice before stays. Collective; waits.
  virtual bool choose_algorithm(const std::string& name) { return name.empty(); }

  /// Starts to = sum over ranks of `from`, after what is queued on `stream`; f64, f32 or bf16.
  virtual Ticket all_reduce_sum(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// The same for one part: `from` is size() equal parts, and `to` becomes the sum over ranks of part rank(). In place,
  /// the other parts are left in an unspecified state. Error where the elements do not divide by size(), or where parts
  /// in symmetric memory are not a multiple of kPartBytes.
  virtual Ticket reduce_scatter_sum(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// Starts to = the `from` of all ranks, in the order of ranks, after what is queued on `stream`; any type.
  virtual Ticket all_gather(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// Starts to = part rank() of the `from` of all ranks, in the order of ranks, after what is queued on `stream`; any
  /// type. Both are size() equal parts, of different memory: both from allocate(), or neither. NCCL sends from
  /// registered memory without a copy, and waits for ever for a receiver whose memory is not. Error where the elements
  /// do not divide by size().
  virtual Ticket all_to_all(const Tensor& from, const Tensor& to, Stream stream) = 0;
  /// to = the `from` of rank `root`, after what is queued on `stream`; any type.
  virtual Ticket broadcast(const Tensor& from, const Tensor& to, int root, Stream stream) = 0;

  /// Starts sending and receiving all of these, after what is queued on `stream`; any type. Messages from one rank to
  /// another arrive in the order of the calls, and have as many bytes where they are sent as where they are received.
  /// No other rank takes part. Waiting for the ticket waits for both. If only one side is memory of allocate(),
  /// NCCL_GRAPH_REGISTER must be 0.
  virtual Ticket exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Stream stream) = 0;

  Ticket all_reduce_sum(const Tensor& values, Stream stream) { return all_reduce_sum(values, values, stream); }
  Ticket reduce_scatter_sum(const Tensor& values, Stream stream);
  Ticket all_gather(const Tensor& values, Stream stream);
  Ticket broadcast(const Tensor& values, int root, Stream stream) { return broadcast(values, values, root, stream); }

  /// True where work queued on that stream from now on sees the result: at once for NCCL, which works in stream order;
  /// when the messages have arrived for MPI, of this ticket alone. Makes progress.
  virtual bool test(Ticket ticket) = 0;
  /// Returns when test() would be true for this ticket and all that were given before.
  virtual void wait(Ticket ticket) = 0;
  /// Whether a graph of the device may capture collectives: those of MPI need the host.
  virtual bool capturable() const { return true; }

  /// Throws Error where the library has seen a peer fail.
  virtual void check_health() {}
};

/// This rank's part of `values` for reduce_scatter_sum() and all_gather(). Error where the elements do not divide.
Tensor own_part(const Communicator& communicator, const Tensor& values);

enum class CommLibrary : std::uint8_t { automatic, nccl, mpi };

struct CommunicatorOptions {
  CommLibrary library = CommLibrary::automatic;  ///< automatic: MPI for CPUs, NCCL for GPUs.
  bool symmetric = true;                         ///< NCCL: symmetric memory where it is possible.
  int max_ctas = 0;                              ///< NCCL: thread blocks of a collective at most; 0: NCCL's choice.
  bool scatters_sums = false;                    ///< reduce_scatter_sum() and all_gather() will be called.
  /// MPI: sums of f32 go from host to host in bf16; on one host, from rank to rank.
  bool bf16_between_hosts = false;
  /// MPI: of this rank, in place of the world's. Ranks with hosts of their own send each for itself.
  std::optional<int> host = {};
  int largest_count = std::numeric_limits<int>::max();  ///< MPI: elements that a call of the library counts at most.
};

/// The one for these ranks and this device; of one rank, every collective is a copy. Collective. The same UsageError on
/// all ranks where the library cannot carry this device's memory, or NCCL refuses what its NCCL_* variables ask for.
std::unique_ptr<Communicator> make_communicator(const World& world, Device& device,
                                                const CommunicatorOptions& options = {});

/// One rank.
std::unique_ptr<Communicator> make_self_communicator(Device& device);
/// MPI messages. CPU memory is sent as it is, and computation overlaps as long as test() is called now and then; GPU
/// memory travels through pinned host memory, to and from which it is copied in stream order. Between hosts, sums and
/// gathers are hierarchical, in a fixed order: see mpi/hierarchical.h. On one host they are those of the library.
std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Device& device,
                                                    const CommunicatorOptions& options = {});
/// GPU memory, NCCL. Symmetric memory makes all-reduces below some 16 MiB faster. It is given where NCCL maps the
/// memory of all ranks and neither NCCL_ALGO, NCCL_PROTO nor NCCL_HOSTID is set (symmetric kernels follow none of
/// them). The device is the current one. UsageError in a build without CUDA. Buffers must be gone before the
/// communicator. Destroyed by an exception, it aborts what NCCL is still doing.
std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Device& device,
                                                     const CommunicatorOptions& options);
std::string nccl_version();  ///< Empty in a build without CUDA.
std::string nccl_library();  ///< File of the NCCL that this process has loaded; empty if it has none.
/// Whether the NCCL that the program was built with can have symmetric memory (2.27.3 and newer).
bool nccl_has_symmetric_windows();

}  // namespace ddptrain
