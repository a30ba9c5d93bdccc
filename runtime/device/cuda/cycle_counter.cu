#include "runtime/device/cycle_counter.h"

#include <cstdint>
#include <vector>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/launch.cuh"

namespace ddptrain {
namespace {

constexpr std::uint32_t kMostMultiprocessors = 1024;

/// clocks[i] = the cycles of multiprocessor i since it was started, for each that gets a block.
__global__ void note_clocks_kernel(std::uint64_t* clocks) {
  std::uint32_t multiprocessor = 0;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  if (multiprocessor < kMostMultiprocessors) clocks[multiprocessor] = static_cast<std::uint64_t>(clock64());
}

class MultiprocessorCycles final : public CycleCounter {
 public:
  explicit MultiprocessorCycles(CudaDevice& device)
      : device_(device),
        begin_(device.allocate(kMostMultiprocessors * sizeof(std::uint64_t))),
        end_(device.allocate(kMostMultiprocessors * sizeof(std::uint64_t))) {}

  void begin() override { note(begin_); }
  void end() override { note(end_); }

  double cycles() override {
    const std::vector<std::uint64_t> begin = read(begin_), end = read(end_);
    double sum = 0.0;
    double count = 0.0;
    for (std::size_t i = 0; i < begin.size(); ++i) {
      if (begin[i] == 0 || end[i] <= begin[i]) continue;
      sum += static_cast<double>(end[i] - begin[i]);
      count += 1.0;
    }
    return count > 0.0 ? sum / count : 0.0;
  }

 private:
  void note(const Buffer& clocks) {
    const Stream stream = device_.compute_stream();
    device_.zero(clocks.data(), clocks.bytes(), stream);
    cuda::launch_kernel(note_clocks_kernel, device_.multiprocessors(), 1, 0, static_cast<cudaStream_t>(stream.handle),
                        static_cast<std::uint64_t*>(clocks.data()));
  }
  std::vector<std::uint64_t> read(const Buffer& clocks) {
    std::vector<std::uint64_t> host(kMostMultiprocessors);
    device_.copy_to_host(host.data(), clocks.data(), clocks.bytes());
    return host;
  }

  CudaDevice& device_;
  Buffer begin_;
  Buffer end_;
};

}  // namespace

std::unique_ptr<CycleCounter> CudaDevice::make_cycle_counter() { return std::make_unique<MultiprocessorCycles>(*this); }

}  // namespace ddptrain
