#include "benchmarks/ddpbench/devices/stream_clock.h"

#include <chrono>
#include <vector>

namespace ddptrain::bench {
namespace {

class WallClock final : public StreamClock {
 public:
  explicit WallClock(std::size_t marks) : times_(marks) {}
  void mark(std::size_t mark, Stream) override { times_.at(mark) = std::chrono::steady_clock::now(); }
  double seconds(std::size_t from, std::size_t to) const override {
    return std::chrono::duration<double>(times_.at(to) - times_.at(from)).count();
  }

 private:
  std::vector<std::chrono::steady_clock::time_point> times_;
};

}  // namespace

std::unique_ptr<StreamClock> make_stream_clock(const Device& device, std::size_t marks) {
  if (device.kind() == DeviceKind::cuda) return gpu::make_stream_clock(marks);
  return std::make_unique<WallClock>(marks);
}

}  // namespace ddptrain::bench
