#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

/// Even and odd ranks on their own: each half sums what it holds.
TEST(Split, CommunicatorsOfHalvesAreIndependent) {
  const World& world = test_world();
  const auto half = world.split(world.rank() % 2);
  EXPECT_EQ(half->rank(), world.rank() / 2);
  EXPECT_EQ(half->size(), (world.size() + 1 - world.rank() % 2) / 2);
  EXPECT_EQ(half->nodes(), 1);
  EXPECT_EQ(half->sum(world.rank()), half->size() * (half->size() - 1) + half->size() * (world.rank() % 2));
  const auto device = make_cpu_device({});
  const auto communicator = make_communicator(*half, *device);
  const Buffer buffer = device->allocate(DType::f32, {1});
  *static_cast<float*>(buffer.data()) = static_cast<float>(world.rank());
  communicator->wait(communicator->all_reduce_sum(buffer.view(DType::f32, {1}), device->compute_stream()));
  EXPECT_EQ(*static_cast<float*>(buffer.data()), static_cast<float>(half->sum(world.rank())));
}

TEST(MpiCommunicator, RefusesATicketThatWasNeverGiven) {
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(test_world(), *device);
  EXPECT_FALSE(communicator->test(0));
  EXPECT_THROW(communicator->wait(0), Error);
}

/// As ZeRO-1 does, with parts of more than 2 GiB.
TEST(MpiCommunicator, ScattersAndGathersPartsOfMoreThan2GiB) {
  if (test_world().size() != 2 || std::getenv("DDPTRAIN_LARGE_TESTS") == nullptr) {
    GTEST_SKIP() << "runs on two ranks with DDPTRAIN_LARGE_TESTS";
  }
  const std::int64_t part = (std::int64_t{1} << 29) + 8;
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(test_world(), *device);
  const Buffer buffer = device->allocate(DType::f32, {2 * part});
  const Tensor values = buffer.view(DType::f32, {2 * part});
  auto* const first = values.as<float>();
  const float mine = test_world().rank() == 0 ? 1.0f : 2.0f;
  std::fill_n(first, part, mine);
  std::fill_n(first + part, part, 2.0f * mine);
  communicator->wait(communicator->reduce_scatter_sum(values, device->communication_stream()));
  communicator->wait(communicator->all_gather(values, device->communication_stream()));
  EXPECT_EQ(std::count(first, first + part, 3.0f), part);
  EXPECT_EQ(std::count(first + part, first + 2 * part, 6.0f), part);
}

TEST(MpiCommunicator, RefusesMoreValuesThanAnIntCounts) {
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(test_world(), *device);
  float none = 0.0f;  // is not read
  const Tensor values{&none, DType::f32, {std::int64_t{1} << 31}};
  EXPECT_THROW(communicator->all_reduce_sum(values, device->communication_stream()), Error);
}

TEST(NcclCommunicator, NeedsABuildWithCuda) {
  if (built_with_cuda()) GTEST_SKIP() << "this build has CUDA";
  const auto device = make_cpu_device({});
  EXPECT_THROW(make_nccl_communicator(test_world(), *device, CommunicatorOptions{.symmetric = false}), UsageError);
  EXPECT_EQ(nccl_version(), "");
}

}  // namespace
}  // namespace ddptrain
