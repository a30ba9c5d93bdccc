#pragma once

#include <cstddef>
#include <memory>

#include "runtime/device/device.h"

namespace ddptrain::bench {

/// Times of points in a stream's work: events on GPUs, the clock on the wall on the CPU, whose work is done when it is
/// queued.
class StreamClock {
 public:
  virtual ~StreamClock() = default;
  /// Point `mark` is where everything queued on `stream` so far is done.
  virtual void mark(std::size_t mark, Stream stream) = 0;
  /// Between two points that have been reached (after Device::synchronize()).
  virtual double seconds(std::size_t from, std::size_t to) const = 0;
};

/// With points 0 to marks - 1.
std::unique_ptr<StreamClock> make_stream_clock(const Device& device, std::size_t marks);

namespace gpu {
/// UsageError in a build without CUDA.
std::unique_ptr<StreamClock> make_stream_clock(std::size_t marks);
}  // namespace gpu

}  // namespace ddptrain::bench
