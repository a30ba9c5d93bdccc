#include "runtime/device/timeline.h"

#include <chrono>
#include <memory>

#include "runtime/device/cpu/cpu_device.h"

namespace ddptrain {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class CpuTimeline final : public Timeline {
 public:
  std::size_t begin(Lane lane, Stream, std::string name) override {
    spans_.push_back({std::move(name), lane, now(), 0.0});
    return spans_.size() - 1;
  }
  void end(std::size_t span, Stream) override { spans_.at(span).end_seconds = now(); }

  std::vector<TimelineSpan> spans() override {
    std::vector<TimelineSpan> ended;
    for (const TimelineSpan& span : spans_) {
      if (span.end_seconds > 0.0) ended.push_back(span);
    }
    return ended;
  }

 private:
  std::vector<TimelineSpan> spans_;
};

}  // namespace

std::unique_ptr<Timeline> CpuDevice::make_timeline() { return std::make_unique<CpuTimeline>(); }

}  // namespace ddptrain
