#include "runtime/ops/cuda/tuner.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

namespace ddptrain::cuda {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;

/// Ways that set 64 MiB once, twice and four times, and count how often they run.
class Ways {
 public:
  Ways() {
    DDP_CUDA(cudaStreamCreate(stream_.out()));
    for (std::size_t i = 0; i < 3; ++i) {
      ways_.push_back([this, i] {
        for (int set = 0; set < 1 << i; ++set) DDP_CUDA(cudaMemsetAsync(memory_.get(), 0, kBytes, stream_.get()));
        ++runs[i];
      });
    }
  }

  std::vector<float> milliseconds(double seconds) { return milliseconds_of(ways_, seconds, stream_.get()); }

  std::vector<int> runs = {0, 0, 0};

 private:
  StreamHandle stream_;
  DeviceMemory memory_ = allocate_memory(kBytes);
  std::vector<std::function<void()>> ways_;
};

void expect_in_order(const std::vector<float>& times) {
  ASSERT_EQ(times.size(), 3u);
  EXPECT_LT(times[0], times[1]);
  EXPECT_LT(times[1], times[2]);
}

class TunerTest : public testing::Test {
 protected:
  void SetUp() override {
    int gpus = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) GTEST_SKIP() << "no GPU on this machine";
  }
};

TEST_F(TunerTest, AFewRunsWithoutSeconds) {
  Ways ways;
  expect_in_order(ways.milliseconds(0.0));
  EXPECT_EQ(ways.runs, std::vector<int>({5, 5, 5}));
}

TEST_F(TunerTest, OnlyWaysNearTheFastestRunForSeconds) {
  Ways ways;
  const auto start = std::chrono::steady_clock::now();
  expect_in_order(ways.milliseconds(0.3));
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(elapsed, 0.15) << "each of the rounds takes half its time before it counts, and half that counts";
  EXPECT_GT(ways.runs[0], 100);
  EXPECT_EQ(ways.runs[1], 5);
  EXPECT_EQ(ways.runs[2], 5);
}

}  // namespace
}  // namespace ddptrain::cuda
