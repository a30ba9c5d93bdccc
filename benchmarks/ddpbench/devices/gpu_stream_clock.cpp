#include <vector>

#include "benchmarks/ddpbench/devices/stream_clock.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::bench::gpu {
namespace {

cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

class EventClock final : public StreamClock {
 public:
  explicit EventClock(std::size_t marks) : events_(marks) {
    for (cuda::EventHandle& event : events_) DDP_CUDA(cudaEventCreate(event.out()));
  }
  void mark(std::size_t mark, Stream stream) override {
    DDP_CUDA(cudaEventRecord(events_.at(mark).get(), stream_of(stream)));
  }
  double seconds(std::size_t from, std::size_t to) const override {
    float milliseconds = 0.0f;
    DDP_CUDA(cudaEventElapsedTime(&milliseconds, events_.at(from).get(), events_.at(to).get()));
    return 1e-3 * milliseconds;
  }

 private:
  std::vector<cuda::EventHandle> events_;
};

}  // namespace

std::unique_ptr<StreamClock> make_stream_clock(std::size_t marks) { return std::make_unique<EventClock>(marks); }

}  // namespace ddptrain::bench::gpu
