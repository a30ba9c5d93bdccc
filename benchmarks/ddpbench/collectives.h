#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "benchmarks/ddpbench/collective.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain::bench {

struct CollectiveCall {
  Collective collective = Collective::all_reduce;
  DType dtype = DType::f32;
  const void* send = nullptr;
  void* recv = nullptr;  ///< In place as NCCL means it: send and recv overlap as the collective's contract allows.
  std::size_t count = 0;
};

/// The collectives of a library, called directly, so that nothing but the library is timed. Rank 0 is the root.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string library() const = 0;
  virtual std::string version() const = 0;
  virtual bool can(Collective collective, DType dtype) const = 0;
  virtual Buffer allocate(std::size_t bytes) = 0;  ///< Collective. Buffers must be gone before this.
  /// Starts the collective: on the device's compute stream (NCCL), or done on return (MPI). Sums.
  virtual void start(const CollectiveCall& call) = 0;
};

std::unique_ptr<Collectives> make_mpi_collectives(const World& world, Device& device);
/// `symmetric`: allocate() gives symmetric-memory windows; UsageError where NCCL has none here. UsageError in a build
/// without CUDA.
std::unique_ptr<Collectives> make_nccl_collectives(const World& world, Device& device, bool symmetric);

}  // namespace ddptrain::bench
