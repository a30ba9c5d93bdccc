#include <gtest/gtest.h>

#include "runtime/comm/tensor_group.h"
#include "tests/support/mpi_main.h"
#include "tests/train/fake_device.h"

namespace ddptrain {
namespace {

/// What is queued for two chunks.
std::vector<std::string> log_of(bool copies) {
  FakeDevice device;
  FakeCommunicator communicator(device, 2);
  communicator.copies = copies;
  TensorGroup group(test_world(), communicator, device);
  const Buffer memory = device.allocate(DType::f32, {8}), received = device.allocate(DType::f32, {8});
  const Tensor values = memory.view(DType::f32, {8}), others = received.view(DType::f32, {8});
  const auto work = [&](const std::string& name) {
    device.log.push_back(fmt::format("{} on {}", name, device.name(device.compute_stream())));
  };
  for (const std::size_t chunk : {0, 1}) {
    work(fmt::format("layer {}", chunk));
    group.computed(chunk);
  }
  for (const std::size_t chunk : {0, 1}) {
    group.exchange(chunk, others, [&] {
      group.run({TensorGroup::swap_shards(values, others)}, [&] { work("gradient"); });
      work("norm");
      group.gather_after_swap({values});
    });
  }
  group.await_all();
  group.run({TensorGroup::sum(values)});
  return device.log;
}

TEST(ExchangeStreams, EachChunkHasOneIfCopyEnginesExchange) {
  const std::vector<std::string> expected = {"layer 0 on compute",
                                             "layer 1 on compute",
                                             "exchange 0 waits for 'layer 0 on compute'",
                                             "all-to-all of 8 on exchange 0",
                                             "gradient on compute",
                                             "norm on exchange 0",
                                             "all-gather of 8 on exchange 0",
                                             "exchange 1 waits for 'layer 1 on compute'",
                                             "all-to-all of 8 on exchange 1",
                                             "gradient on compute",
                                             "norm on exchange 1",
                                             "all-gather of 8 on exchange 1",
                                             "compute waits for 'all-gather of 8 on exchange 0'",
                                             "compute waits for 'all-gather of 8 on exchange 1'",
                                             "communication waits for compute",
                                             "all-reduce of 8 on communication",
                                             "compute waits for communication"};
  EXPECT_EQ(log_of(true), expected);
}

TEST(ExchangeStreams, AllExchangesAreOnTheCommunicationStreamOtherwise) {
  for (const std::string& line : log_of(false)) EXPECT_EQ(line.find("exchange"), std::string::npos) << line;
}

}  // namespace
}  // namespace ddptrain
