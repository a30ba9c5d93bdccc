#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "runtime/device/cuda/cuda_device.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// Cases of a kernel with warpgroup instructions, in bf16. Skips them on other machines.
template <class Case>
class WarpgroupTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() final {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device({"cuda_bf16", DeviceKind::cuda, Precision::bf16});
    if (!cuda::multiplies_by_warpgroups()) GTEST_SKIP() << "this GPU has no warpgroup instructions";
    bench_ = std::make_unique<Bench>(*device_);
    prepare();
  }
  virtual void prepare() = 0;

  CudaDevice& gpu() const { return dynamic_cast<CudaDevice&>(*device_); }
  cudaStream_t stream() const { return gpu().stream(); }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
};

}  // namespace ddptrain::tests
