#include "runtime/device/peak_rate.h"

#include <gtest/gtest.h>

namespace ddptrain {
namespace {

double tflops(const std::string& name, Precision precision, bool fp8 = false) {
  return 1e-12 * data_sheet_peak(name, precision, fp8).flops;
}

TEST(PeakRate, GoesByTheExactProduct) {
  EXPECT_DOUBLE_EQ(tflops("NVIDIA H200", Precision::bf16), 989.5);
  EXPECT_DOUBLE_EQ(tflops("NVIDIA H200 NVL", Precision::bf16), 835.5);
  EXPECT_DOUBLE_EQ(tflops("NVIDIA H100 80GB HBM3", Precision::bf16), 989.5);
  EXPECT_DOUBLE_EQ(tflops("NVIDIA H100 PCIe", Precision::bf16), 756);
  EXPECT_DOUBLE_EQ(tflops("NVIDIA A100-SXM4-80GB", Precision::tf32), 156);
  EXPECT_DOUBLE_EQ(tflops("NVIDIA A10", Precision::bf16), 125);
  EXPECT_DOUBLE_EQ(tflops("NVIDIA L40S", Precision::bf16), 362);
  EXPECT_DOUBLE_EQ(tflops("Tesla V100-SXM2-16GB", Precision::fp32), 15.7);
}

TEST(PeakRate, Fp8HasItsOwn) {
  EXPECT_DOUBLE_EQ(tflops("NVIDIA H200", Precision::bf16, true), 1979);
  EXPECT_EQ(data_sheet_peak("NVIDIA H200", Precision::bf16, true).source, "H200 SXM, fp8, H200 data sheet");
  EXPECT_EQ(data_sheet_peak("NVIDIA GeForce RTX 5090", Precision::bf16, false).source,
            "RTX 5090, bf16, RTX Blackwell white paper");
  EXPECT_EQ(tflops("NVIDIA A100-SXM4-80GB", Precision::bf16, true), 0.0);
}

TEST(PeakRate, IsUnknownOfOtherProducts) {
  for (const char* name : {"NVIDIA A10G", "NVIDIA A1000", "NVIDIA GeForce RTX 4090 Laptop GPU",
                           "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 5090 D", "NVIDIA A100-SXM-64GB",
                           "NVIDIA H100 64GB HBM2", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "CPU"}) {
    EXPECT_EQ(tflops(name, Precision::fp32), 0.0) << name;
    EXPECT_EQ(data_sheet_peak(name, Precision::fp32, false).source, "") << name;
  }
}

}  // namespace
}  // namespace ddptrain
