#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddptrain {

struct Stream;

enum class Lane : std::uint8_t { compute, communication };

/// A stretch of work of one rank, on the monotonic clock of its host.
struct TimelineSpan {
  std::string name;
  Lane lane = Lane::compute;
  double begin_seconds = 0.0;
  double end_seconds = 0.0;
};

/// Notes when queued work begins and ends on the device. What is noted while a graph is captured tells of the graph's
/// last launch. Adds an event to the stream at both ends of a span.
class Timeline {
 public:
  virtual ~Timeline() = default;

  /// A span of what is queued on `stream` from now on, up to end(). Returns its number.
  virtual std::size_t begin(Lane lane, Stream stream, std::string name) = 0;
  virtual void end(std::size_t span, Stream stream) = 0;
  /// All that have ended, in the order of begin(). The work must be done.
  virtual std::vector<TimelineSpan> spans() = 0;
};

/// A span from construction to destruction, if there is a timeline.
class Span {
 public:
  Span(Timeline* timeline, Lane lane, const Stream& stream, const std::string& name);
  ~Span();
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Timeline* timeline_;
  void* stream_;
  std::size_t span_ = 0;
};

}  // namespace ddptrain
