#include "runtime/device/timeline.h"

#include "runtime/device/device.h"

namespace ddptrain {

Span::Span(Timeline* timeline, Lane lane, const Stream& stream, const std::string& name)
    : range_(name.c_str()), timeline_(timeline), stream_(stream.handle) {
  if (timeline_ != nullptr) span_ = timeline_->begin(lane, stream, name);
}

Span::~Span() {
  if (timeline_ != nullptr) timeline_->end(span_, Stream{stream_});
}

}  // namespace ddptrain
