#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "runtime/comm/communicator.h"
#include "tests/support/gpus.h"
#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kShard = 65536;  // values

/// What rank `sender` has for rank `receiver`.
std::vector<float> shard_of(int sender, int receiver) {
  std::vector<float> values(kShard);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(1000 * (sender + 1) + 100 * receiver) + static_cast<float>(i % 97);
  }
  return values;
}

/// The shards that `shard(rank)` returns, one for each rank. Zeros for rank `without`.
template <class Shard>
std::vector<float> joined(const Shard& shard, int without = -1) {
  std::vector<float> all;
  for (int rank = 0; rank < test_world().size(); ++rank) {
    const std::vector<float> values = rank == without ? std::vector<float>(kShard) : shard(rank);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// The memory of a swap and of a gathering in place.
struct Exchanged {
  Buffer from;
  Buffer swapped;
  Buffer gathered;
  Buffer gathered_after_swap;
};

class CopyEngines : public testing::Test {
 protected:
  void SetUp() override {
    World& world = test_world();
    if (world.min(has_gpus_for(world.local_size()) ? 1 : 0) == 0) GTEST_SKIP() << "needs a GPU for each rank";
    DeviceOptions options;
    options.ranks = ranks_per_gpu(world.size());
    device_ = make_cuda_device(options, gpu_of(world.local_rank()));
    communicator_ = make_nccl_communicator(world, *device_, {.symmetric = true, .copy_engines = true});
    for (Exchanged& stream : exchanged_) {
      for (Buffer* buffer : {&stream.from, &stream.swapped, &stream.gathered, &stream.gathered_after_swap}) {
        *buffer = communicator_->allocate(static_cast<std::size_t>(world.size() * kShard) * sizeof(float));
      }
    }
    if (!communicator_->copies_into(view(exchanged_[0].swapped))) GTEST_SKIP() << "copy engines do not exchange";
    for (const Exchanged& stream : exchanged_) {
      put(stream.from, joined([&](int rank) { return shard_of(world.rank(), rank); }));
      put(stream.gathered, joined([&](int) { return shard_of(world.rank(), 7); }));
      put(stream.gathered_after_swap, joined([&](int) { return shard_of(world.rank(), 8); }));
    }
  }
  void TearDown() override {
    exchanged_ = {};
    communicator_.reset();
    device_.reset();
  }

  Tensor view(const Buffer& buffer) { return buffer.view(DType::f32, {test_world().size() * kShard}); }
  void put(const Buffer& buffer, const std::vector<float>& values) {
    device_->copy_to_device(buffer.data(), values.data(), buffer.bytes());
  }
  std::vector<float> values_of(const Buffer& buffer) {
    std::vector<float> values(buffer.bytes() / sizeof(float));
    device_->copy_to_host(values.data(), buffer.data(), buffer.bytes());
    return values;
  }
  void exchange(std::size_t index, Stream stream) {
    const Exchanged& memory = exchanged_[index];
    communicator_->swap_shards(view(memory.from), view(memory.swapped), stream);
    communicator_->gather_after_swap({view(memory.gathered_after_swap)}, stream);
    communicator_->all_gather(view(memory.gathered), stream);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
  std::array<Exchanged, 2> exchanged_;
};

/// On odd ranks, exchanges on the first stream start after those on the second one. Even ranks do not wait, so they set
/// the flags of the first stream early.
TEST_F(CopyEngines, ExchangeOnTwoStreamsAtOnce) {
  const Stream compute = device_->compute_stream();
  const std::array streams = {device_->exchange_stream(0), device_->exchange_stream(1)};
  const auto exchange_both = [&] {
    for (const Stream stream : streams) device_->wait_for(stream, compute);
    exchange(1, streams[1]);
    if (test_world().rank() % 2 == 1) device_->wait_for(streams[0], streams[1]);
    exchange(0, streams[0]);
    for (const Stream stream : streams) device_->wait_for(compute, stream);
  };
  for (int i = 0; i < 20; ++i) exchange_both();
  device_->synchronize();
  const auto graph = device_->capture([&] {
    for (int i = 0; i < 20; ++i) exchange_both();
  });
  for (const Exchanged& stream : exchanged_)
    put(stream.swapped, joined([](int) { return std::vector<float>(kShard); }));
  for (int launch = 0; launch < 10; ++launch) graph->launch();
  device_->synchronize();
  const int mine = test_world().rank();
  for (const Exchanged& stream : exchanged_) {
    std::vector<float> swapped = values_of(stream.swapped);
    std::fill_n(swapped.begin() + mine * kShard, kShard, 0.0f);  // unspecified
    EXPECT_EQ(swapped, joined([&](int rank) { return shard_of(rank, mine); }, mine));
    EXPECT_EQ(values_of(stream.gathered), joined([](int rank) { return shard_of(rank, 7); }));
    EXPECT_EQ(values_of(stream.gathered_after_swap), joined([](int rank) { return shard_of(rank, 8); }));
  }
}

}  // namespace
}  // namespace ddptrain
