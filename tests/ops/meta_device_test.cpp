#include "runtime/ops/meta_device.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/ops/quantisation.h"

namespace ddptrain {
namespace {

TEST(MetaDeviceTest, HoldsMoreThanThereIs) {
  const auto device = make_meta_device({.precision = Precision::bf16, .fp8 = true}, DeviceKind::cuda);
  EXPECT_EQ(device->dtype(), DType::bf16);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 16; ++i) buffers.push_back(device->allocate(std::size_t{1} << 40));
  EXPECT_EQ(total_bytes(buffers), std::size_t{16} << 40);
  EXPECT_TRUE(device->has_own_memory());
  EXPECT_FALSE(make_meta_device({}, DeviceKind::cpu)->has_own_memory());
  EXPECT_TRUE(device->get<QuantisationOps>().fits(32, 64));
  EXPECT_FALSE(make_meta_device({}, DeviceKind::cpu)->get<QuantisationOps>().fits(32, 64));
}

}  // namespace
}  // namespace ddptrain
