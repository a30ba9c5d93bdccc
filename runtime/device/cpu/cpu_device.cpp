#include "runtime/device/cpu/cpu_device.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <cstdint>
#include <exception>
#include <fstream>
#include <vector>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

DeviceOptions checked(DeviceOptions options) {
  if (options.precision == Precision::tf32 || options.precision == Precision::bf16) {
    usage_error(
        "--precision {}: the CPU computes in fp32. Use --precision fp32, or --device cuda on a machine with a GPU.",
        name_of(options.precision));
  }
  if (options.threads < 1) usage_error("--threads {}: at least 1 is needed.", options.threads);
  return options;
}

/// From now on, this thread takes numbers that are smaller than the smallest normal one as 0. Moments of weights
/// without gradients come there after hundreds of steps, and x86 computes with such numbers many times slower.
void flush_subnormals() {
#if defined(__SSE2__)
  constexpr unsigned kFlushToZero = 0x8000, kSubnormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kSubnormalsAreZero);
#elif defined(__aarch64__)
  constexpr std::uint64_t kFlushToZero = std::uint64_t{1} << 24;
  std::uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
  asm volatile("msr fpcr, %0" ::"r"(control | kFlushToZero));
#endif
}

}  // namespace

CpuDevice::CpuDevice(DeviceOptions options) : Device(options) { flush_subnormals(); }

std::string CpuDevice::name() const {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const auto colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "CPU";
}

void CpuDevice::parallel(std::int64_t count,
                         const std::function<void(std::int64_t begin, std::int64_t end, int thread)>& work) {
  const int all = threads();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(all));
  // These tell ThreadSanitizer the order that OpenMP guarantees.
  std::atomic<int> fork{0};
  std::atomic<int> join{0};
  fork.store(1, std::memory_order_release);
#pragma omp parallel for num_threads(all) schedule(static, 1)
  for (int thread = 0; thread < all; ++thread) {
    fork.load(std::memory_order_acquire);
    flush_subnormals();
    const std::int64_t begin = count * thread / all;
    const std::int64_t end = count * (thread + 1) / all;
    try {
      if (begin < end) work(begin, end, thread);
    } catch (...) {  // an exception must not leave OpenMP's parallel region
      errors[static_cast<std::size_t>(thread)] = std::current_exception();
    }
    join.fetch_add(1, std::memory_order_release);
  }
  join.load(std::memory_order_acquire);
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void* CpuDevice::scratch(std::size_t bytes) {
  if (scratch_.bytes() < bytes) scratch_ = allocate(bytes);
  return scratch_.data();
}

std::unique_ptr<Device> make_cpu_device(DeviceOptions options) { return std::make_unique<CpuDevice>(checked(options)); }

}  // namespace ddptrain
