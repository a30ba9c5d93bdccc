#include "runtime/topology/gpu_selection.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "runtime/core/error.h"
#include "tests/support/temp_folder.h"

namespace ddptrain {
namespace {

class GpuSelectionTest : public testing::Test {
 protected:
  void SetUp() override { unsetenv("CUDA_VISIBLE_DEVICES"); }
  void TearDown() override { unsetenv("CUDA_VISIBLE_DEVICES"); }

  tests::TempFolder folder_;
  std::filesystem::path devices_ = folder_ / "dev";
};

TEST_F(GpuSelectionTest, CountsDeviceFiles) {
  EXPECT_EQ(visible_gpus(devices_), 0);
  std::filesystem::create_directories(devices_);
  for (const char* name : {"nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia", "sda1"}) {
    std::ofstream(devices_ / name) << "";
  }
  EXPECT_EQ(visible_gpus(devices_), 3);
}

TEST_F(GpuSelectionTest, ReadsTheListAsCudaDoes) {
  for (const auto& [list, count] :
       {std::pair{"", 0}, {"-1", 0}, {"3", 1}, {"4,2", 2}, {"1,-1,2", 1}, {"GPU-8f,GPU-2a", 2}}) {
    setenv("CUDA_VISIBLE_DEVICES", list, 1);
    EXPECT_EQ(visible_gpus(devices_), count) << list;
  }
}

TEST_F(GpuSelectionTest, LeavesOneGpu) {
  show_only_gpu(5);
  EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), "5");
  setenv("CUDA_VISIBLE_DEVICES", "4, 2,7", 1);
  EXPECT_THROW(show_only_gpu(3), Error);
  show_only_gpu(1);
  EXPECT_STREQ(getenv("CUDA_VISIBLE_DEVICES"), "2");
}

}  // namespace
}  // namespace ddptrain
