#include "runtime/device/device.h"

#include <gtest/gtest.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/device/cpu/cpu_device.h"
#include "tests/support/says.h"

namespace ddptrain::tests {
namespace {

/// Notes in a log when it comes and goes, and that it may use its device then.
template <int kNumber>
struct Extension {
  static inline std::vector<std::string>* log = nullptr;

  Device& device;

  explicit Extension(Device& of) : device(of) { log->push_back(fmt::format("+{}", kNumber)); }
  ~Extension() { log->push_back(fmt::format("-{} {}", kNumber, device.allocate(64).bytes())); }
  static std::unique_ptr<Extension> make(Device& device) { return std::make_unique<Extension>(device); }
};

TEST(DeviceTest, ExtensionsAreMadeOnceAndGoBeforeTheDevice) {
  std::vector<std::string> log;
  Extension<1>::log = Extension<2>::log = &log;
  {
    const auto device = make_cpu_device({});
    auto& first = device->get<Extension<1>>();
    device->get<Extension<2>>();
    EXPECT_EQ(&device->get<Extension<1>>(), &first);
    EXPECT_EQ(log, (std::vector<std::string>{"+1", "+2"}));
  }
  EXPECT_EQ(log, (std::vector<std::string>{"+1", "+2", "-2 64", "-1 64"}));
}

TEST(DeviceTest, LeavesNothingToCollectivesWhileItIsWhole) {
  DeviceOptions options;
  options.comm_ctas = 4;
  const auto device = make_cpu_device(options);
  EXPECT_EQ(device->comm_ctas(), 4);
  {
    const WholeDevice whole(*device);
    EXPECT_EQ(device->comm_ctas(), 0);
    { const WholeDevice again(*device); }
    EXPECT_EQ(device->comm_ctas(), 0);
  }
  EXPECT_EQ(device->comm_ctas(), 4);
}

TEST(Parallel, EveryElementIsVisitedOnceInRangesByThread) {
  for (const int threads : {1, 2, 5}) {
    CpuDevice device({.threads = threads});
    for (const std::int64_t count : {0, 1, 2, 3, 7, 1000}) {
      std::vector<int> thread_of(static_cast<std::size_t>(count), -1);
      device.parallel(count, [&](std::int64_t begin, std::int64_t end, int thread) {
        for (std::int64_t i = begin; i < end; ++i) thread_of[static_cast<std::size_t>(i)] = thread;
      });
      for (std::int64_t i = 0; i < count; ++i) {
        const int thread = thread_of[static_cast<std::size_t>(i)];
        ASSERT_GE(i, count * thread / threads);
        ASSERT_LT(i, count * (thread + 1) / threads);
      }
    }
  }
}

/// Such as moments of weights without gradients, after hundreds of steps. x86 computes with smaller numbers many times
/// slower.
TEST(Parallel, NumbersSmallerThanTheSmallestNormalOneAreZeroInAllThreads) {
  constexpr int kThreads = 3;
  CpuDevice device({.threads = kThreads});
#if defined(__SSE2__)  // as in threads that something else has started
  device.parallel(kThreads, [](std::int64_t, std::int64_t, int) { _mm_setcsr(_mm_getcsr() & ~0x8040u); });
#endif
  const std::vector<float> moments(kThreads, std::numeric_limits<float>::min());
  std::vector<float> decayed(kThreads, 1.0f);
  device.parallel(kThreads, [&](std::int64_t begin, std::int64_t end, int) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
      decayed[i] = 0.9f * moments[i];
  });
  // As numbers, what is smaller would equal 0 in this thread.
  for (const float value : decayed) EXPECT_EQ(std::bit_cast<std::uint32_t>(value), 0u);
}

TEST(Parallel, AnExceptionComesOutWhenAllThreadsAreDone) {
  constexpr int kThreads = 5;
  CpuDevice device({.threads = kThreads});
  for (int thrower = 0; thrower < kThreads; ++thrower) {
    std::atomic<int> done = 0;
    const auto work = [&](std::int64_t, std::int64_t, int thread) {
      if (thread == thrower) throw std::runtime_error(std::to_string(thread));
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++done;
    };
    EXPECT_EQ(error_message<std::runtime_error>([&] { device.parallel(kThreads, work); }), std::to_string(thrower));
    EXPECT_EQ(done, kThreads - 1);
  }
}

/// Its spans cannot be ended.
class BrokenTimeline final : public Timeline {
 public:
  std::size_t begin(Lane, Stream, std::string) override { return begun_++; }
  void end(std::size_t, Stream) override { throw std::runtime_error("the GPU is gone"); }
  std::vector<TimelineSpan> spans() override { return {}; }
  std::size_t begun() const { return begun_; }

 private:
  std::size_t begun_ = 0;
};

TEST(SpanTest, AFailureAtTheEndLeavesTheProgramRunning) {
  BrokenTimeline timeline;
  { const Span span(&timeline, Lane::compute, {}, "forward"); }
  EXPECT_THROW(
      {
        const Span span(&timeline, Lane::compute, {}, "backward");
        throw std::logic_error("what failed first");
      },
      std::logic_error);
  EXPECT_EQ(timeline.begun(), 2u);
}

TEST(DeviceTest, RecordingEndsWithItsWork) {
  const auto device = make_cpu_device({});
  const auto timeline = device->make_timeline();
  device->record(*timeline, [&] {
    EXPECT_EQ(device->timeline(), timeline.get());
    const Span span(device->timeline(), Lane::compute, {}, "forward");
  });
  EXPECT_EQ(device->timeline(), nullptr);
  EXPECT_THROW(device->record(*timeline, [] { throw std::runtime_error("out of memory"); }), std::runtime_error);
  EXPECT_EQ(device->timeline(), nullptr);
  ASSERT_EQ(timeline->spans().size(), 1u);
}

}  // namespace
}  // namespace ddptrain::tests
