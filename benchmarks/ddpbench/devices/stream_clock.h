#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device/device.h"

namespace ddptrain::bench {

/// Times of points in the work of a stream: events on GPUs, wall clock on the CPU, whose work is done when the call
/// returns.
class StreamClock {
 public:
  virtual ~StreamClock() = default;
  /// Sets point `mark` behind the work that is queued on `stream` now.
  virtual void mark(std::size_t mark, Stream stream) = 0;
  /// Seconds between two points that have been reached (after Device::synchronize()).
  virtual double seconds(std::size_t from, std::size_t to) const = 0;
};

/// A clock with points 0 to marks - 1.
std::unique_ptr<StreamClock> make_stream_clock(const Device& device, std::size_t marks);

namespace gpu {
/// UsageError in a build without CUDA.
std::unique_ptr<StreamClock> make_stream_clock(std::size_t marks);
}  // namespace gpu

}  // namespace ddptrain::bench
