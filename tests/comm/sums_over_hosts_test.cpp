#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <span>
#include <thread>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/bf16.h"
#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

std::vector<std::span<const std::byte>> sent_messages;

}  // namespace
}  // namespace ddptrain

/// MPI lets a program put itself before its functions.
int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  ddptrain::sent_messages.emplace_back(static_cast<const std::byte*>(data), static_cast<std::size_t>(count));
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

namespace ddptrain {
namespace {

/// What a sum over hosts must give, bit by bit: ranks are added in their order on each host, hosts in the order of
/// their lowest ranks.
std::vector<float> sum_over_hosts(const std::vector<std::vector<float>>& of_rank, const std::vector<int>& host_of,
                                  bool rounds) {
  const auto rounded = [rounds](float value) { return rounds ? to_float(to_bf16(value)) : value; };
  std::vector<float> sums(of_rank[0].size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    std::vector<int> hosts;
    for (const int host : host_of) {
      if (std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
    }
    bool first_host = true;
    for (const int host : hosts) {
      bool first_rank = true;
      float sum = 0.0f;
      for (std::size_t rank = 0; rank < of_rank.size(); ++rank) {
        if (host_of[rank] != host) continue;
        sum = first_rank ? of_rank[rank][i] : sum + of_rank[rank][i];
        first_rank = false;
      }
      sums[i] = first_host ? rounded(sum) : sums[i] + rounded(sum);
      first_host = false;
    }
    sums[i] = rounded(sums[i]);
  }
  return sums;
}

std::vector<float> values_of(int rank, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1.0f / static_cast<float>(static_cast<std::size_t>(rank) * 7919 + i % 613 + 1) - 0.01f;
  }
  return values;
}

/// Several sums on their way at once, waited for from the last to the first.
void check(const std::vector<int>& host_of, bool rounds) {
  const World& world = test_world();
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(
      world, *device,
      CommunicatorOptions{.bf16_between_hosts = rounds, .host = host_of[static_cast<std::size_t>(world.rank())]});
  const std::vector<std::int64_t> counts = {1, 3, 63, 64, 65, 1000, 12289, 24577, 98305, 262147};
  std::vector<Buffer> buffers;
  std::vector<Communicator::Ticket> tickets;
  for (const std::int64_t count : counts) {
    buffers.push_back(communicator->allocate(sizeof(float) * static_cast<std::size_t>(count)));
    const auto mine = values_of(world.rank(), count);
    device->copy_to_device(buffers.back().data(), mine.data(), buffers.back().bytes());
    tickets.push_back(communicator->all_reduce_sum(buffers.back().view(DType::f32, {count}), device->compute_stream()));
  }
  for (std::size_t i = counts.size(); i-- > 0;) {
    communicator->wait(tickets[i]);
    std::vector<std::vector<float>> of_rank;
    for (int rank = 0; rank < world.size(); ++rank) of_rank.push_back(values_of(rank, counts[i]));
    std::vector<float> sums(of_rank[0].size());
    device->copy_to_host(sums.data(), buffers[i].data(), buffers[i].bytes());
    EXPECT_TRUE(sums == sum_over_hosts(of_rank, host_of, rounds)) << counts[i] << " elements";
  }
}

TEST(SumsOverHosts, HaveOneOrderAndRoundingOnAllRanks) {
  const int ranks = test_world().size();
  if (ranks == 1) GTEST_SKIP() << "needs several ranks";
  for (const int kind : {0, 1, 2, 3}) {
    std::vector<int> host_of;
    for (int rank = 0; rank < ranks; ++rank) {
      host_of.push_back(kind == 0 ? rank : kind == 1 ? rank / 2 : kind == 2 ? rank % 2 : rank == 1 ? 0 : 1);
    }
    if (std::count(host_of.begin(), host_of.end(), host_of[0]) == ranks) continue;  // one host
    for (const bool rounds : {false, true}) check(host_of, rounds);
  }
}

/// The large one has only so much on its way at a time, and less where sums are rounded. Behind what was sent before
/// the small one, ranks send some more while they wait for it.
TEST(SumsOverHosts, ASmallOneThatStartsLaterEndsEarlier) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "needs several ranks";
  for (const bool rounds : {false, true}) {
    const auto device = make_cpu_device({});
    const auto communicator =
        make_mpi_communicator(world, *device, {.bf16_between_hosts = rounds, .host = world.rank()});
    const std::int64_t size = std::int64_t{8} << 20;
    const Buffer large = device->allocate(DType::f32, {size});
    const Buffer small = device->allocate(DType::f32, {1000});
    sent_messages.clear();
    const auto first = communicator->all_reduce_sum(large.view(DType::f32, {size}), device->compute_stream());
    const auto second = communicator->all_reduce_sum(small.view(DType::f32, {1000}), device->compute_stream());
    while (!communicator->test(second)) std::this_thread::yield();
    const auto of_large = std::ranges::count_if(
        sent_messages, [](std::span<const std::byte> message) { return message.size() == 48 << 10; });
    const int on_their_way = world.size() > 2 ? 8 : rounds ? 1 : 4;
    const int messages_of_slice = 2 * (world.size() - 1);
    EXPECT_LE(of_large, 4 * on_their_way * messages_of_slice);
    communicator->wait(first);
  }
}

/// Of two sums that can both go on, as in a step, where the next forward pass needs the last bucket first. Ranks call
/// test() together, once in each round, so that messages of both have arrived before.
TEST(SumsOnTheirWay, TheNewestSendsFirst) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "needs several ranks";
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(world, *device, {.host = world.rank()});
  const std::int64_t size = std::int64_t{4} << 20;
  const Buffer older = device->allocate(DType::f32, {size});
  const Buffer newest = device->allocate(DType::f32, {size});
  const auto of_newest = [&](std::span<const std::byte> message) {
    const std::byte* begin = static_cast<const std::byte*>(newest.data());
    return message.data() >= begin && message.data() < begin + newest.bytes();
  };
  const auto first = communicator->all_reduce_sum(older.view(DType::f32, {size}), device->compute_stream());
  const auto second = communicator->all_reduce_sum(newest.view(DType::f32, {size}), device->compute_stream());
  bool both_sent = false;
  for (bool done = false; world.max(done ? 0.0 : 1.0) > 0.0;) {
    sent_messages.clear();
    done = communicator->test(first);
    EXPECT_TRUE(std::ranges::is_partitioned(sent_messages, of_newest));
    both_sent |= std::ranges::any_of(sent_messages, of_newest) && !std::ranges::all_of(sent_messages, of_newest);
  }
  EXPECT_EQ(world.max(both_sent ? 1.0 : 0.0), 1.0) << "no rank had messages of both to send at once";
  communicator->wait(second);
}

/// Each adds by itself: a rank that starts later gets its sum while the other one computes and does not call MPI.
TEST(SumOverTwoHosts, NeedsNoAnswer) {
  const World& world = test_world();
  if (world.size() != 2) GTEST_SKIP() << "needs two ranks";
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(world, *device, CommunicatorOptions{.host = world.rank()});
  const std::filesystem::path computing = testing::TempDir() + "computing";
  if (world.rank() == 0) std::filesystem::remove(computing);
  world.barrier();
  const auto wait_until = [&computing](bool is_there) {
    const auto patience = std::chrono::steady_clock::now() + std::chrono::minutes(5);
    while (std::filesystem::exists(computing) != is_there && std::chrono::steady_clock::now() < patience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  const Buffer buffer = device->allocate(DType::f32, {100});
  std::fill_n(static_cast<float*>(buffer.data()), 100, static_cast<float>(world.rank() + 1));
  if (world.rank() == 1) wait_until(true);
  const auto sum = communicator->all_reduce_sum(buffer.view(DType::f32, {100}), device->compute_stream());
  if (world.rank() == 0) {
    std::ofstream{computing};
    wait_until(false);
    EXPECT_FALSE(std::filesystem::remove(computing)) << "rank 1 waits for rank 0";
  }
  communicator->wait(sum);
  if (world.rank() == 1) std::filesystem::remove(computing);
  EXPECT_EQ(std::count(static_cast<float*>(buffer.data()), static_cast<float*>(buffer.data()) + 100, 3.0f), 100);
  world.barrier();
}

TEST(SumsOnOneHost, RoundedOnesAreThoseOfAHostForEachRank) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "needs several ranks";
  const auto device = make_cpu_device({});
  const auto communicator = make_mpi_communicator(world, *device, CommunicatorOptions{.bf16_between_hosts = true});
  const Buffer buffer = device->allocate(DType::f32, {1});
  *static_cast<float*>(buffer.data()) = 1.001f;
  communicator->wait(communicator->all_reduce_sum(buffer.view(DType::f32, {1}), device->compute_stream()));
  EXPECT_EQ(*static_cast<float*>(buffer.data()), static_cast<float>(world.size()));
}

}  // namespace
}  // namespace ddptrain
