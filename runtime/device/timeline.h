#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/process/profiler_range.h"

namespace ddptrain {

struct Stream;

enum class Lane : std::uint8_t { compute, communication };

/// A piece of work of one rank. Times are from the monotonic clock of its host.
struct TimelineSpan {
  std::string name;
  Lane lane = Lane::compute;
  double begin_seconds = 0.0;
  double end_seconds = 0.0;
};

/// Records when queued work begins and ends on the device. Spans that are recorded during the capture of a graph have
/// the times of the graph's last launch. Each end of a span adds an event to the stream.
class Timeline {
 public:
  virtual ~Timeline() = default;

  /// Begins a span of the work that is queued on `stream` until end(). Returns the span's number.
  virtual std::size_t begin(Lane lane, Stream stream, std::string name) = 0;
  virtual void end(std::size_t span, Stream stream) = 0;
  /// All ended spans, in the order of begin(). The work must be done.
  virtual std::vector<TimelineSpan> spans() = 0;
};

/// A span from construction to destruction, if there is a timeline. Profilers see the host's part of it: the time in
/// which it queues the work.
class Span {
 public:
  Span(Timeline* timeline, Lane lane, const Stream& stream, const std::string& name);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  ProfilerRange range_;
  Timeline* timeline_;
  void* stream_;
  std::size_t span_ = 0;
};

}  // namespace ddptrain
