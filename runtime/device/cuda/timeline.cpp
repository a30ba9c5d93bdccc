#include "runtime/device/timeline.h"

#include <chrono>
#include <memory>

#include "runtime/device/cuda/cuda_device.h"

namespace ddptrain {
namespace {

class CudaTimeline final : public Timeline {
 public:
  /// Records the time, on the host's clock, at which `stream` has done its work so far.
  explicit CudaTimeline(cudaStream_t stream) {
    record(origin_, stream);
    DDP_CUDA(cudaStreamSynchronize(stream));
    origin_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::size_t begin(Lane lane, Stream stream, std::string name) override {
    marks_.push_back({std::move(name), lane, {}, {}});
    record(marks_.back().begin, static_cast<cudaStream_t>(stream.handle));
    return marks_.size() - 1;
  }
  void end(std::size_t span, Stream stream) override {
    record(marks_.at(span).end, static_cast<cudaStream_t>(stream.handle));
  }

  std::vector<TimelineSpan> spans() override {
    std::vector<TimelineSpan> ended;
    for (const Marks& marks : marks_) {
      if (marks.end) ended.push_back({marks.name, marks.lane, seconds(marks.begin), seconds(marks.end)});
    }
    return ended;
  }

 private:
  struct Marks {
    std::string name;
    Lane lane;
    cuda::EventHandle begin;
    cuda::EventHandle end;
  };

  static void record(cuda::EventHandle& event, cudaStream_t stream) {
    DDP_CUDA(cudaEventCreate(event.out()));
    const unsigned flags = cuda::is_capturing(stream) ? cudaEventRecordExternal : cudaEventRecordDefault;
    DDP_CUDA(cudaEventRecordWithFlags(event.get(), stream, flags));
  }

  double seconds(const cuda::EventHandle& event) const {
    float milliseconds = 0.0f;
    DDP_CUDA(cudaEventElapsedTime(&milliseconds, origin_.get(), event.get()));
    return origin_seconds_ + 1e-3 * static_cast<double>(milliseconds);
  }

  cuda::EventHandle origin_;
  double origin_seconds_ = 0.0;
  std::vector<Marks> marks_;
};

}  // namespace

std::unique_ptr<Timeline> CudaDevice::make_timeline() { return std::make_unique<CudaTimeline>(compute_.stream.get()); }

}  // namespace ddptrain
