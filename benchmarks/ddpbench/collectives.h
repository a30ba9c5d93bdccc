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

/// Direct calls of a library's collectives, so that a benchmark times the library only. Rank 0 is the root.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual std::string library() const = 0;
  virtual std::string version() const = 0;
  virtual bool can(Collective collective, DType dtype) const = 0;
  virtual Buffer allocate(std::size_t bytes) = 0;  ///< Collective. Destroy the buffers before this object.
  /// Starts the collective; reductions are sums. NCCL queues it on the device's compute stream, MPI returns when it is
  /// done.
  virtual void start(const CollectiveCall& call) = 0;
};

std::unique_ptr<Collectives> make_mpi_collectives(const World& world, Device& device);
/// `symmetric`: allocate() gives windows of symmetric memory; UsageError if NCCL has none on these GPUs. UsageError in
/// a build without CUDA.
std::unique_ptr<Collectives> make_nccl_collectives(const World& world, Device& device, bool symmetric);

}  // namespace ddptrain::bench
