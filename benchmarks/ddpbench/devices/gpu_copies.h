#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ddptrain::bench {

/// Copies between the GPUs that this process sees, timed as in p2pBandwidthLatencyTest: a kernel holds the stream while
/// the host queues the copies, so the time to queue them does not count. Events time the copies.
class GpuCopies {
 public:
  virtual ~GpuCopies() = default;

  virtual int count() const = 0;
  virtual std::string name(int gpu) const = 0;          ///< With its PCI bus id.
  virtual bool can_access(int from, int to) const = 0;  ///< Whether `from` can access the memory of `to` directly.
  /// Turns peer access on for all pairs that support it, or off for all pairs; applies to later copies.
  virtual void set_peer_access(bool enabled) = 0;

  /// GB/s (1e9) of copies from GPU `from` to GPU `to`; within one GPU, bytes read and bytes written both count.
  virtual double one_way(int from, int to, std::size_t bytes, int repeats) = 0;
  /// The sum of both directions at once, on two streams.
  virtual double both_ways(int a, int b, std::size_t bytes, int repeats) = 0;

  struct Latency {
    double gpu_us = 0.0;  ///< Between events.
    double cpu_us = 0.0;  ///< Time of the host to queue a copy.
  };
  virtual Latency latency(int from, int to, int repeats) = 0;  ///< Latency of copies of 16 bytes.

  struct HostRates {
    double to_device = 0.0;  ///< GB/s, from pinned memory.
    double from_device = 0.0;
    double both = 0.0;  ///< Sum of both directions at once.
  };
  virtual HostRates host(int gpu, std::size_t bytes, int repeats) = 0;
};

/// Null: there is no GPU, or the build has no CUDA.
std::unique_ptr<GpuCopies> make_gpu_copies();

}  // namespace ddptrain::bench
