#include "runtime/device/timeline.h"

#include <spdlog/spdlog.h>

#include <exception>

#include "runtime/device/device.h"

namespace ddptrain {

Span::Span(Timeline* timeline, Lane lane, const Stream& stream, const std::string& name)
    : range_(name.c_str()), timeline_(timeline), stream_(stream.handle) {
  if (timeline_ != nullptr) span_ = timeline_->begin(lane, stream, name);
}

Span::~Span() {
  if (timeline_ == nullptr) return;
  try {
    timeline_->end(span_, Stream{stream_});
  } catch (const std::exception& error) {  // a GPU's error: the next wait for the GPU throws it, too
    spdlog::warn("the end of a span is not on the timeline: {}", error.what());
  }
}

}  // namespace ddptrain
