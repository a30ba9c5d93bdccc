#include "runtime/comm/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <tuple>

#include "runtime/core/error.h"
#include "runtime/core/process/scoped_environment.h"
#include "tests/support/gpus.h"
#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

enum class Library { self, mpi, nccl };

struct Setup {
  const char* name;
  DeviceKind kind;
  Library library;
  CommunicatorOptions options = {};
  int (*host_of)(int rank) = nullptr;  ///< As if ranks were on these hosts.
};

void PrintTo(const Setup& setup, std::ostream* out) { *out << setup.name; }

const Setup kSetups[] = {
    {"self", DeviceKind::cpu, Library::self},
    {"mpi", DeviceKind::cpu, Library::mpi},
    {"mpi_hosts_of_one", DeviceKind::cpu, Library::mpi, {}, [](int rank) { return rank; }},
    {"mpi_hosts_of_two", DeviceKind::cpu, Library::mpi, {}, [](int rank) { return rank / 2; }},
    {"mpi_two_hosts_by_turns", DeviceKind::cpu, Library::mpi, {}, [](int rank) { return rank % 2; }},
    {"mpi_one_and_the_others", DeviceKind::cpu, Library::mpi, {}, [](int rank) { return rank == 1 ? 0 : 1; }},
    {"mpi_gpu", DeviceKind::cuda, Library::mpi},
    {"mpi_gpu_hosts_of_one", DeviceKind::cuda, Library::mpi, {}, [](int rank) { return rank; }},
    {"nccl_plain", DeviceKind::cuda, Library::nccl, {.symmetric = false}},
    {"nccl_symmetric", DeviceKind::cuda, Library::nccl, {.symmetric = true}},
    {"nccl_copy_engines", DeviceKind::cuda, Library::nccl, {.symmetric = true, .copy_engines = true}}};

std::unique_ptr<Communicator> make(const Setup& setup, Device& device) {
  if (setup.library == Library::self) return make_self_communicator(device);
  CommunicatorOptions options = setup.options;
  if (setup.host_of != nullptr) options.host = setup.host_of(test_world().rank());
  return setup.library == Library::mpi ? make_mpi_communicator(test_world(), device, options)
                                       : make_nccl_communicator(test_world(), device, options);
}

/// What every communicator must do. Each rank knows what every other rank contributes.
class CommunicatorTest : public testing::TestWithParam<Setup> {
 protected:
  void SetUp() override {
    World& world = test_world();
    const bool cuda = GetParam().kind == DeviceKind::cuda;
    if (cuda && world.min(has_gpus_for(world.local_size()) ? 1 : 0) == 0) {
      GTEST_SKIP() << "needs a GPU for each of " << world.local_size() << " ranks, here are " << cuda_device_count();
    }
    if (std::string(GetParam().name) == "self" && world.size() > 1) GTEST_SKIP() << "is for one rank";
    DeviceOptions options;
    options.ranks = ranks_per_gpu(world.size());
    device_ = cuda ? make_cuda_device(options, gpu_of(world.local_rank())) : make_cpu_device({});
    communicator_ = make(GetParam(), *device_);
  }

  void TearDown() override {
    communicator_.reset();
    device_.reset();
  }

  /// Needed where memory that a graph sent was freed: see Communicator::allocate().
  void renew_communicator() {
    communicator_.reset();
    communicator_ = make(GetParam(), *device_);
  }

  Stream stream() { return device_->communication_stream(); }
  /// A graph of what `work` queues on stream().
  std::unique_ptr<Graph> captured(const std::function<void()>& work) {
    return device_->capture([&] {
      device_->wait_for(stream(), device_->compute_stream());
      work();
      device_->wait_for(device_->compute_stream(), stream());
    });
  }
  int ranks() const { return test_world().size(); }
  int rank() const { return test_world().rank(); }

  /// Small integers that differ by rank and place: sums are exact in every type.
  template <class T>
  static std::vector<T> contribution(int rank, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<T>((rank + 1) * (i % 97 + 1) - 40);
    }
    return values;
  }

  template <class T>
  std::vector<T> expected_sum(std::int64_t count) const {
    std::vector<T> sum(static_cast<std::size_t>(count));
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto part = contribution<T>(rank, count);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
    }
    return sum;
  }

  template <class T>
  Buffer device_copy(const std::vector<T>& values) {
    Buffer buffer = communicator_->allocate(values.size() * sizeof(T));
    device_->copy_to_device(buffer.data(), values.data(), buffer.bytes());
    return buffer;
  }

  template <class T>
  std::vector<T> host_copy(const Buffer& buffer) {
    std::vector<T> values(buffer.bytes() / sizeof(T));
    device_->copy_to_host(values.data(), buffer.data(), buffer.bytes());
    return values;
  }

  void finish(Communicator::Ticket ticket) {
    communicator_->wait(ticket);
    device_->synchronize();
  }

  template <class T>
  void check_sums(DType dtype) {
    for (const std::int64_t count : {1, 2, 3, 5, 7, 127, 1000, 4099, 262147}) {
      const Buffer buffer = device_copy(contribution<T>(rank(), count));
      finish(communicator_->all_reduce_sum(buffer.view(dtype, {count}), stream()));
      EXPECT_EQ(host_copy<T>(buffer), expected_sum<T>(count)) << count << " elements";
    }
  }

  /// Part `index` of as many as there are ranks.
  template <class T>
  std::vector<T> part_of(const std::vector<T>& values, int index) const {
    const std::ptrdiff_t part = std::ssize(values) / ranks();
    return {values.begin() + index * part, values.begin() + (index + 1) * part};
  }

  template <class T>
  void check_scattered_sums(DType dtype) {
    for (const std::int64_t part : parts()) {
      const std::int64_t count = part * ranks();
      const Buffer buffer = device_copy(contribution<T>(rank(), count));
      finish(communicator_->reduce_scatter_sum(buffer.view(dtype, {count}), stream()));
      EXPECT_EQ(part_of(host_copy<T>(buffer), rank()), part_of(expected_sum<T>(count), rank()))
          << part << " elements of " << ranks() << " ranks";
    }
  }

  bool wants_symmetric() const { return GetParam().library == Library::nccl && GetParam().options.symmetric; }

  /// Symmetric shards have a multiple of kShardBytes.
  std::vector<std::int64_t> parts() const {
    if (wants_symmetric()) return {16, 32, 48, 2032, 16000, 65552};
    return {1, 2, 3, 127, 1000, 65537};
  }

  /// What all_gather() of contributions gives: part r is rank r's.
  template <class T>
  std::vector<T> expected_gathered(std::int64_t part) const {
    std::vector<T> values;
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto own = part_of(contribution<T>(rank, part * ranks()), rank);
      values.insert(values.end(), own.begin(), own.end());
    }
    return values;
  }

  /// What all_to_all() of contributions gives: part s of what rank s sends comes to part s.
  template <class T>
  std::vector<T> expected_exchanged(std::int64_t part) const {
    std::vector<T> values;
    for (int sender = 0; sender < ranks(); ++sender) {
      const auto sent = part_of(contribution<T>(sender, part * ranks()), rank());
      values.insert(values.end(), sent.begin(), sent.end());
    }
    return values;
  }

  template <class T>
  void check_gathers(DType dtype) {
    for (const std::int64_t part : parts()) {
      const Buffer buffer = device_copy(contribution<T>(rank(), part * ranks()));
      finish(communicator_->all_gather(buffer.view(dtype, {part * ranks()}), stream()));
      EXPECT_EQ(host_copy<T>(buffer), expected_gathered<T>(part)) << part << " elements of each rank";
    }
  }

  /// Part r of what rank s sends becomes part s on rank r, between neighbours that stay.
  template <class T>
  void check_exchanges(DType dtype) {
    for (const std::int64_t part : parts()) {
      const auto mine = contribution<T>(rank(), part * ranks());
      const Buffer from = device_copy(mine);
      const Buffer to = device_copy(std::vector<T>(mine.size() + 128, T{7}));
      const Tensor slice{static_cast<T*>(to.data()) + 64, dtype, {part * ranks()}};
      finish(communicator_->all_to_all(from.view(dtype, {part * ranks()}), slice, stream()));
      std::vector<T> expected = expected_exchanged<T>(part);
      expected.insert(expected.begin(), 64, T{7});
      expected.insert(expected.end(), 64, T{7});
      EXPECT_EQ(host_copy<T>(to), expected) << part << " elements for each rank";
      EXPECT_EQ(host_copy<T>(from), mine);
    }
  }

  /// The same with swap_shards(), which leaves the part of this rank unspecified, and then a gathering of all. Twice,
  /// in a graph as well if `in_a_graph`.
  void check_swaps(std::int64_t part, bool in_a_graph) {
    const auto mine = contribution<float>(rank(), part * ranks());
    const Shape shape{part * ranks()};
    const Buffer from = device_copy(mine);
    const Buffer to = device_copy(std::vector<float>(mine.size(), 7.0f)), all = device_copy(mine);
    const auto swap_and_gather = [&] {
      communicator_->wait(
          communicator_->swap_shards(from.view(DType::f32, shape), to.view(DType::f32, shape), stream()));
      communicator_->wait(communicator_->all_gather(all.view(DType::f32, shape), stream()));
      communicator_->wait(
          communicator_->swap_shards(from.view(DType::f32, shape), to.view(DType::f32, shape), stream()));
    };
    swap_and_gather();
    device_->synchronize();
    const auto graph = in_a_graph ? captured(swap_and_gather) : nullptr;
    for (int launch = 0; graph != nullptr && launch < 3; ++launch) {
      device_->copy_to_device(to.data(), mine.data(), to.bytes());
      device_->synchronize();
      graph->launch();
    }
    device_->synchronize();
    auto found = host_copy<float>(to), expected = expected_exchanged<float>(part);
    for (auto* values : {&found, &expected}) {
      std::fill_n(values->begin() + rank() * part, part, 0.0f);
    }
    EXPECT_EQ(found, expected) << part << " elements for each rank";
    EXPECT_EQ(host_copy<float>(all), expected_gathered<float>(part));
    EXPECT_EQ(host_copy<float>(from), mine);
  }

  /// As ZeRO-1 and virtual ranks do: if one rank gathers between two operations, another one may gather after both.
  /// `operation` works on contributions with this part for each rank, and `check` sees what they became.
  void check_gathering_between(std::int64_t part, const std::function<Communicator::Ticket(const Tensor&)>& operation,
                               const std::function<void(const std::vector<float>&)>& check) {
    if (GetParam().kind == DeviceKind::cuda) GTEST_SKIP() << "streams keep one order for all";
    const auto mine = contribution<float>(rank(), part * ranks());
    const Buffer gathered = device_copy(mine), first = device_copy(mine), second = device_copy(mine);
    const auto view = [&](const Buffer& buffer) { return buffer.view(DType::f32, {part * ranks()}); };
    operation(view(first));
    if (rank() % 2 == 0) communicator_->all_gather(view(gathered), stream());
    auto last = operation(view(second));
    if (rank() % 2 == 1) last = communicator_->all_gather(view(gathered), stream());
    communicator_->wait(last);
    EXPECT_EQ(host_copy<float>(gathered), expected_gathered<float>(part));
    for (const Buffer* buffer : {&first, &second}) check(host_copy<float>(*buffer));
  }

  /// Runs `work` twice from a graph, on a buffer that it sums over the ranks.
  void check_sums_in_a_graph(std::int64_t count, const std::function<void(const Tensor&)>& work) {
    if (!communicator_->capturable()) GTEST_SKIP() << "needs the host";
    const Buffer buffer = device_copy(contribution<float>(rank(), count));
    const auto step = [&] {
      device_->wait_for(stream(), device_->compute_stream());
      work(buffer.view(DType::f32, {count}));
      device_->wait_for(device_->compute_stream(), stream());
    };
    step();
    const auto graph = device_->capture(step);
    if (!graph) GTEST_SKIP() << "this device has no graphs";
    device_->copy_to_device(buffer.data(), contribution<float>(rank(), count).data(), buffer.bytes());
    graph->launch();
    graph->launch();
    device_->synchronize();
    auto expected = expected_sum<float>(count);
    for (float& value : expected) value *= static_cast<float>(ranks());
    EXPECT_EQ(host_copy<float>(buffer), expected);
  }

  /// Of ones in bf16, which `sum` sums over the ranks.
  void check_sums_of_bf16(std::int64_t count, const std::function<void(const Tensor&)>& sum) {
    const Buffer buffer = device_copy(std::vector<std::uint16_t>(static_cast<std::size_t>(count), 0x3F80));
    const Tensor values = buffer.view(DType::bf16, {count});
    sum(values);
    device_->synchronize();
    const Buffer wide = device_->allocate(DType::f32, {count});
    device_->convert(values, wide.view(DType::f32, {count}), device_->compute_stream());
    const std::vector<float> expected(static_cast<std::size_t>(count), static_cast<float>(ranks()));
    EXPECT_EQ(host_copy<float>(wide), expected);
  }

  /// `sum` sums a slice of a buffer; what lies before and behind it stays.
  void check_sums_of_a_slice(std::int64_t count, const std::function<void(const Tensor&)>& sum) {
    const Buffer buffer = device_copy(contribution<float>(rank(), count + 200));
    sum({static_cast<float*>(buffer.data()) + 128, DType::f32, {count}});
    device_->synchronize();
    auto expected = contribution<float>(rank(), count + 200);
    const auto sums = expected_sum<float>(count + 200);
    std::copy(sums.begin() + 128, sums.begin() + 128 + count, expected.begin() + 128);
    EXPECT_EQ(host_copy<float>(buffer), expected);
  }

  void sum(const Tensor& values) { communicator_->wait(communicator_->all_reduce_sum(values, stream())); }
  void scatter_sums_and_gather(const Tensor& values) {
    communicator_->wait(communicator_->reduce_scatter_sum(values, stream()));
    communicator_->wait(communicator_->all_gather(values, stream()));
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Communicator> communicator_;
};

/// Each rank to the one behind it, in a ring, two messages of different sizes at a time, several times.
TEST_P(CommunicatorTest, NeighboursExchangeMessagesInOrder) {
  if (ranks() == 1) GTEST_SKIP() << "one rank has no neighbours";
  const int behind = (rank() + 1) % ranks(), before = (rank() + ranks() - 1) % ranks();
  for (const std::int64_t count : {1, 1000, 262147}) {
    const Buffer first = device_copy(contribution<float>(rank(), count));
    const Buffer second = device_copy(contribution<float>(rank() + 7, count + 5));
    const Buffer from_first = device_copy(std::vector<float>(static_cast<std::size_t>(count)));
    const Buffer from_second = device_copy(std::vector<float>(static_cast<std::size_t>(count) + 5));
    finish(communicator_->exchange(
        {{first.view(DType::f32, {count}), behind}, {second.view(DType::f32, {count + 5}), behind}},
        {{from_first.view(DType::f32, {count}), before}, {from_second.view(DType::f32, {count + 5}), before}},
        stream()));
    EXPECT_EQ(host_copy<float>(from_first), contribution<float>(before, count));
    EXPECT_EQ(host_copy<float>(from_second), contribution<float>(before + 7, count + 5));
  }
}

TEST_P(CommunicatorTest, AllocatesZeroedAlignedMemory) {
  const Buffer buffer = communicator_->allocate(1001);
  EXPECT_EQ(buffer.bytes(), 1001u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
  EXPECT_EQ(host_copy<char>(buffer), std::vector<char>(1001, 0));
}

TEST_P(CommunicatorTest, SumsOfAnySize) {
  check_sums<float>(DType::f32);
  check_sums<double>(DType::f64);
}

TEST_P(CommunicatorTest, ReducesToOneRank) {
  const int root = ranks() - 1;
  for (const std::int64_t count : {1, 127, 262147}) {
    const auto mine = contribution<float>(rank(), count);
    const Buffer from = device_copy(mine);
    const Buffer to = device_copy(std::vector<float>(mine.size(), 7.0f));
    const Tensor values = from.view(DType::f32, {count});
    finish(communicator_->reduce_sum(values, to.view(DType::f32, {count}), root, stream()));
    const std::vector<float> untouched(mine.size(), 7.0f);
    EXPECT_EQ(host_copy<float>(to), rank() == root ? expected_sum<float>(count) : untouched) << count << " elements";
    EXPECT_EQ(host_copy<float>(from), mine);
    finish(communicator_->reduce_sum(values, values, root, stream()));
    EXPECT_EQ(host_copy<float>(from), rank() == root ? expected_sum<float>(count) : mine) << count << " in place";
  }
}

TEST_P(CommunicatorTest, ScattersSumsOfAnySize) {
  check_scattered_sums<float>(DType::f32);
  check_scattered_sums<double>(DType::f64);
}

TEST_P(CommunicatorTest, SumsBf16) {
  check_sums_of_bf16(1001, [&](const Tensor& values) { sum(values); });
  check_sums_of_bf16(1008 * ranks(), [&](const Tensor& values) { scatter_sums_and_gather(values); });
}

TEST_P(CommunicatorTest, SumsASliceAndLeavesItsNeighboursAlone) {
  check_sums_of_a_slice(333, [&](const Tensor& values) { sum(values); });
  check_sums_of_a_slice(336 * ranks(), [&](const Tensor& values) { scatter_sums_and_gather(values); });
}

TEST_P(CommunicatorTest, WorksInsideAGraph) {
  check_sums_in_a_graph(777, [&](const Tensor& values) { sum(values); });
  renew_communicator();
  check_sums_in_a_graph(784 * ranks(), [&](const Tensor& values) { scatter_sums_and_gather(values); });
}

TEST_P(CommunicatorTest, GivesNoMemoryThatNcclMayTakeForWhatAGraphSent) {
  if (GetParam().library != Library::nccl) GTEST_SKIP() << "registers no memory";
  {
    const Buffer sent = device_copy(contribution<float>(rank(), 64 * ranks()));
    const auto step = [&] { sum(sent.view(DType::f32, {64 * ranks()})); };
    step();
    const auto graph = captured(step);
    ASSERT_NE(graph, nullptr);
    const Buffer more = communicator_->allocate(64);  // nothing has been freed yet
    EXPECT_EQ(more.bytes(), 64u);
  }
  EXPECT_THROW(communicator_->allocate(64), Error);
  ScopedEnvironment environment;
  environment.set("NCCL_GRAPH_REGISTER", "0");
  EXPECT_EQ(communicator_->allocate(64).bytes(), 64u);
}

TEST_P(CommunicatorTest, SwapsShardsOfAnySize) {
  for (const std::int64_t part : {4, 1000, 65536, 262148}) {  // symmetric shards have a multiple of kShardBytes
    check_swaps(part, false);
    if (GetParam().kind != DeviceKind::cuda || !communicator_->capturable()) continue;
    check_swaps(part, true);
    renew_communicator();
  }
}

TEST_P(CommunicatorTest, RanksMayGatherAtDifferentPointsOfTheSums) {
  constexpr std::int64_t kPart = 40009;
  const auto scatter = [&](const Tensor& values) { return communicator_->reduce_scatter_sum(values, stream()); };
  check_gathering_between(kPart, scatter, [&](const std::vector<float>& sums) {
    EXPECT_EQ(part_of(sums, rank()), part_of(expected_sum<float>(kPart * ranks()), rank()));
  });
}

TEST_P(CommunicatorTest, RanksMayGatherAtDifferentPointsOfTheExchanges) {
  constexpr std::int64_t kPart = 40009;
  const Buffer from = device_copy(contribution<float>(rank(), kPart * ranks()));
  const auto exchange = [&](const Tensor& values) {
    return communicator_->all_to_all(from.view(DType::f32, values.shape), values, stream());
  };
  check_gathering_between(kPart, exchange, [&](const std::vector<float>& exchanged) {
    EXPECT_EQ(exchanged, expected_exchanged<float>(kPart));
  });
}

TEST_P(CommunicatorTest, GathersPartsOfAnySize) {
  check_gathers<float>(DType::f32);
  check_gathers<std::uint8_t>(DType::u8);
}

TEST_P(CommunicatorTest, ExchangesPartsOfAnySizeAndLeavesWhatItReadsAlone) {
  check_exchanges<float>(DType::f32);
  check_exchanges<std::uint16_t>(DType::bf16);
}

TEST_P(CommunicatorTest, RefusesPartsThatAreNotEqual) {
  if (ranks() == 1) GTEST_SKIP() << "one part is whatever there is";
  const Buffer buffer = communicator_->allocate(sizeof(float) * static_cast<std::size_t>(ranks() + 1));
  const Tensor values = buffer.view(DType::f32, {ranks() + 1});
  EXPECT_THROW(communicator_->reduce_scatter_sum(values, stream()), Error);
  EXPECT_THROW(communicator_->all_gather(values, stream()), Error);
  const Buffer other = communicator_->allocate(buffer.bytes());
  EXPECT_THROW(communicator_->all_to_all(values, other.view(DType::f32, {ranks() + 1}), stream()), Error);
}

TEST_P(CommunicatorTest, LeavesWhatItReadsAloneWhereTheResultIsElsewhere) {
  const std::int64_t part = 2032;
  const std::int64_t count = part * ranks();
  const auto mine = contribution<float>(rank(), count);
  const Buffer from = device_copy(mine);
  const Buffer to = communicator_->allocate(from.bytes());
  const Tensor all = from.view(DType::f32, {count});
  finish(communicator_->all_reduce_sum(all, to.view(DType::f32, {count}), stream()));
  EXPECT_EQ(host_copy<float>(to), expected_sum<float>(count));
  finish(communicator_->reduce_scatter_sum(all, to.view(DType::f32, {part}), stream()));
  const auto own_sums = part_of(expected_sum<float>(count), rank());
  auto scattered = host_copy<float>(to);
  scattered.resize(own_sums.size());
  EXPECT_EQ(scattered, own_sums);
  const Tensor own = own_shard(*communicator_, all);
  finish(communicator_->all_gather(own, to.view(DType::f32, {count}), stream()));
  EXPECT_EQ(host_copy<float>(to), expected_gathered<float>(part));
  EXPECT_EQ(host_copy<float>(from), mine);
}

TEST_P(CommunicatorTest, SeveralAreOutstandingAtOnce) {
  constexpr int kTickets = 8;
  std::vector<Buffer> buffers;
  std::vector<Communicator::Ticket> tickets;
  const auto count_of = [](int i) { return std::int64_t{20011} * (kTickets - i); };
  for (int i = 0; i < kTickets; ++i) buffers.push_back(device_copy(contribution<float>(rank(), count_of(i))));
  for (int i = 0; i < kTickets; ++i) {
    const Tensor values = buffers[static_cast<std::size_t>(i)].view(DType::f32, {count_of(i)});
    tickets.push_back(communicator_->all_reduce_sum(values, stream()));
  }
  EXPECT_TRUE(std::is_sorted(tickets.begin(), tickets.end()));
  for (bool all = false; !all;) {
    all = true;
    for (const Communicator::Ticket ticket : tickets) all = communicator_->test(ticket) && all;
  }
  device_->synchronize();
  for (int i = 0; i < kTickets; ++i) {
    EXPECT_EQ(host_copy<float>(buffers[static_cast<std::size_t>(i)]), expected_sum<float>(count_of(i)));
  }
}

TEST_P(CommunicatorTest, WaitForTheLastFinishesAllBefore) {
  const Buffer first = device_copy(contribution<float>(rank(), 50021));
  const Buffer second = device_copy(contribution<float>(rank(), 11));
  const auto early = communicator_->all_reduce_sum(first.view(DType::f32, {50021}), stream());
  const auto late = communicator_->all_reduce_sum(second.view(DType::f32, {11}), stream());
  communicator_->wait(late);
  EXPECT_TRUE(communicator_->test(early));
  communicator_->wait(early);
  device_->synchronize();
  EXPECT_EQ(host_copy<float>(first), expected_sum<float>(50021));
}

/// Ranks must end with the same bits although sums of floats depend on the order of their terms.
TEST_P(CommunicatorTest, EveryRankGetsTheSameBitsEveryTime) {
  for (const std::int64_t count : {3, 1023, 100003}) {
    std::vector<float> mine(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i] = 1.0f / static_cast<float>(static_cast<std::size_t>(rank()) * 7919 + i % 613 + 1);
    }
    std::vector<std::string> results;
    for (int repeat = 0; repeat < 3; ++repeat) {
      const Buffer buffer = device_copy(mine);
      finish(communicator_->all_reduce_sum(buffer.view(DType::f32, {count}), stream()));
      const auto sums = host_copy<float>(buffer);
      std::string bytes(sums.size() * sizeof(float), '\0');
      std::memcpy(bytes.data(), sums.data(), bytes.size());
      for (auto& one : test_world().all_gather(bytes)) results.push_back(std::move(one));
    }
    for (const auto& result : results) EXPECT_TRUE(result == results.front()) << count << " elements";
  }
}

TEST_P(CommunicatorTest, BroadcastsFromEveryRoot) {
  for (int root = 0; root < ranks(); ++root) {
    const Buffer buffer = device_copy(contribution<double>(rank(), 4099));
    finish(communicator_->broadcast(buffer.view(DType::f64, {4099}), root, stream()));
    EXPECT_EQ(host_copy<double>(buffer), contribution<double>(root, 4099)) << "root " << root;
  }
}

/// NCCL 2.27.3 and newer.
bool nccl_has_symmetric_memory() {
  int major = 0, minor = 0, patch = 0;
  const bool read = std::sscanf(nccl_version().c_str(), "%d.%d.%d", &major, &minor, &patch) == 3;
  return read && std::tuple(major, minor, patch) >= std::tuple(2, 27, 3);
}

TEST_P(CommunicatorTest, MemoryForPeersIsReachedByEveryRank) {
  const PeerMemory memory = communicator_->allocate_for_peers(4000);
  const bool symmetric = wants_symmetric() && nccl_has_symmetric_memory() && ranks() > 1;
  EXPECT_EQ(communicator_->symmetric(), symmetric);
  const bool could = std::string(GetParam().name).starts_with("nccl");
  EXPECT_EQ(communicator_->why_not_symmetric().empty(), !could || symmetric);
  ASSERT_EQ(memory.of_rank.size(), symmetric ? static_cast<std::size_t>(ranks()) : 0u);
  if (!symmetric) return;
  EXPECT_EQ(host_copy<char>(memory.mine), std::vector<char>(4000, 0)) << "zeroed after the exchange";
  test_world().barrier();
  const auto mine = contribution<float>(rank(), 1000);
  device_->copy_to_device(memory.mine.data(), mine.data(), memory.mine.bytes());
  test_world().barrier();
  for (std::size_t peer = 0; peer < memory.of_rank.size(); ++peer) {
    std::vector<float> values(1000);
    device_->copy_to_host(values.data(), memory.of_rank[peer], memory.mine.bytes());
    EXPECT_EQ(values, contribution<float>(static_cast<int>(peer), 1000));
  }
  test_world().barrier();
}

TEST_P(CommunicatorTest, NoMemoryForPeersWhereARankWantsNone) {
  const PeerMemory memory = communicator_->allocate_for_peers(rank() == 0 ? 0 : 4000);
  EXPECT_TRUE(memory.of_rank.empty());
  EXPECT_EQ(memory.mine.data(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest, testing::ValuesIn(kSetups),
                         [](const auto& setup) { return std::string(setup.param.name); });

}  // namespace
}  // namespace ddptrain
