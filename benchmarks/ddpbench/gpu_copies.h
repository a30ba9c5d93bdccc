#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace ddptrain::bench {

/// Copies between the GPUs that this process sees, timed as p2pBandwidthLatencyTest does: the stream is held by a
/// kernel while the copies are queued, so that the time to queue them does not count; events time them.
class GpuCopies {
 public:
  virtual ~GpuCopies() = default;

  virtual int count() const = 0;
  virtual std::string name(int gpu) const = 0;          ///< With its PCI bus id.
  virtual bool can_access(int from, int to) const = 0;  ///< `from` can reach memory of `to` directly.
  /// For the copies to come: between all pairs that can, or between none.
  virtual void set_peer_access(bool enabled) = 0;

  /// GB/s (1e9) of copies from GPU `from` to GPU `to`; on one GPU, bytes read and written count.
  virtual double one_way(int from, int to, std::size_t bytes, int repeats) = 0;
  /// Both directions at once, on two streams; their sum.
  virtual double both_ways(int a, int b, std::size_t bytes, int repeats) = 0;

  struct Latency {
    double gpu_us = 0.0;  ///< Between events.
    double cpu_us = 0.0;  ///< To queue a copy, as the host sees it.
  };
  virtual Latency latency(int from, int to, int repeats) = 0;  ///< Of copies of 16 bytes.

  struct HostRates {
    double to_device = 0.0;  ///< GB/s, from pinned memory.
    double from_device = 0.0;
    double both = 0.0;  ///< At once; their sum.
  };
  virtual HostRates host(int gpu, std::size_t bytes, int repeats) = 0;
};

/// Null where there is no GPU, or CUDA is not in this build.
std::unique_ptr<GpuCopies> make_gpu_copies();

}  // namespace ddptrain::bench
