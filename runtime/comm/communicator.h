#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// NCCL 2.28's symmetric kernels scatter and gather wrong values where parts are not a multiple of it.
inline constexpr std::size_t kPartBytes = 16;

/// Memory of this rank that the GPUs of all ranks reach.
struct PeerMemory {
  Buffer mine;                 ///< Zeroed.
  std::vector<void*> of_rank;  ///< Rank r's memory, as this rank's GPU reaches it; empty: there is none.
};

/// Collectives over device memory. Every rank calls the same methods in the same order with the same sizes; over MPI
/// the order of all_gather() calls among the others may differ between ranks.
/// Errors throw Error with the failing call. Made after, and destroyed before, device and world.
class Communicator {
 public:
  using Ticket = std::uint64_t;

  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
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

  /// Starts values = sum over ranks, in place, after what is queued on `stream`; f64, f32 or bf16.
  virtual Ticket all_reduce_sum(const Tensor& values, Stream stream) = 0;
  /// The same for one part: `values` is size() equal parts, and part r of rank r becomes its sum over ranks, in place.
  /// The other parts are left in an unspecified state. Error where the elements do not divide by size(), or where parts
  /// in symmetric memory are not a multiple of kPartBytes.
  virtual Ticket reduce_scatter_sum(const Tensor& values, Stream stream) = 0;
  /// Starts copying part r of rank r to every rank, in place, after what is queued on `stream`; any type. Error where
  /// the elements do not divide by size().
  virtual Ticket all_gather(const Tensor& values, Stream stream) = 0;
  /// True where work queued on that stream from now on sees the result: at once for NCCL, which works in stream order;
  /// when the messages have arrived for MPI. Makes progress. Tickets complete in the order they were given.
  virtual bool test(Ticket ticket) = 0;
  virtual void wait(Ticket ticket) = 0;  ///< Returns when test(ticket) would be true.

  virtual void broadcast(const Tensor& values, int root, Stream stream) = 0;

  /// Throws Error where the library has seen a peer fail.
  virtual void check_health() {}
  virtual std::string library() const = 0;  ///< NCCL or MPI; empty where there is none.
  virtual std::string library_version() const = 0;
};

/// This rank's part of `values` for reduce_scatter_sum() and all_gather(). Error where the elements do not divide.
Tensor own_part(const Communicator& communicator, const Tensor& values);

/// CPU memory, MPI messages; overlaps with computation as long as test() is called now and then.
std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Device& device);
struct NcclOptions {
  bool symmetric = true;
  int max_ctas = 0;            ///< Thread blocks of a collective at most; 0: NCCL's choice.
  bool scatters_sums = false;  ///< reduce_scatter_sum() and all_gather() will be called.
};

/// GPU memory, NCCL. `symmetric`: allocate() gives symmetric-memory windows, which are faster for all-reduces below
/// some 16 MiB, where NCCL maps the memory of all ranks and neither NCCL_ALGO, NCCL_PROTO nor NCCL_HOSTID is set
/// (symmetric kernels follow none of them). The device's device is the current one. Collective. The same UsageError on
/// all ranks in a build without CUDA and where NCCL refuses its NCCL_* settings for the collectives that will be called
/// (each is tried once). Buffers must be gone before it. Destroyed by an exception, it aborts what NCCL is still doing.
std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Device& device, const NcclOptions& options);
/// One rank: every collective is the identity.
std::unique_ptr<Communicator> make_self_communicator(Device& device);
/// The one for these ranks and this device: itself for one rank, MPI for CPUs, NCCL (with `options`) for GPUs.
std::unique_ptr<Communicator> make_communicator(const World& world, Device& device, const NcclOptions& options);
std::string nccl_version();  ///< Empty in a build without CUDA.

}  // namespace ddptrain
