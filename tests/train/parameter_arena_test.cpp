#include "runtime/train/step/store/parameter_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "runtime/core/error.h"
#include "tests/train/fake_device.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

std::string hash_of(const ParameterArena& arena) { return TrainingState(arena, {}).parameter_hash(); }

std::vector<ParameterSpec> specs() {
  return {{"weight", {37, 111}, InitialValue::uniform(0.25f), true},
          {"one", {1}, InitialValue::uniform(0.5f), true},
          {"bias", {37}, InitialValue{}, false},
          {"tail", {3, 5}, InitialValue::uniform(1.0f)}};
}

/// Threads share long parameters: an element's value depends on its parameter and place alone.
TEST(ParameterArena, StartValuesDoNotDependOnTheLengthOfParameters) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto start_values = [&](std::int64_t first, std::int64_t second) {
    ParameterArena arena(
        {{"first", {first}, InitialValue::normal(1.0f)}, {"second", {second}, InitialValue::normal(1.0f)}},
        {std::size_t{64} << 20}, *rig.device, *rig.communicator);
    arena.initialise(5, test_world().rank());
    return master_values(arena, *rig.device);
  };
  constexpr std::int64_t kShort = 1001, kLong = 1'300'003;
  const auto lengths = start_values(kLong, kShort), other = start_values(kShort, kLong);
  const auto longest = start_values(kLong + 700'000, kLong + 700'000);
  if (test_world().rank() > 0) return;
  const auto same = [](const auto& a, std::int64_t at, const auto& b, std::int64_t from, std::int64_t count) {
    return std::equal(a.begin() + at, a.begin() + at + count, b.begin() + from);
  };
  EXPECT_TRUE(same(lengths, 0, longest, 0, kLong));
  EXPECT_TRUE(same(lengths, kLong, longest, kLong + 700'000, kShort));
  EXPECT_TRUE(same(other, 0, longest, 0, kShort));
  EXPECT_TRUE(same(other, kShort, longest, kLong + 700'000, kLong));
  // From the definition, worked out apart in Python.
  const std::map<std::size_t, double> expected = {{262143, 0.438446},   {262144, 1.265314},  {262145, 1.199373},
                                                  {262147, -0.437998},  {524291, -0.449585}, {786433, -0.482774},
                                                  {1048578, -1.225670}, {1300002, 0.377202}};
  for (const auto& [at, value] : expected) EXPECT_NEAR(longest[at], value, 1e-5) << at;
}

/// A parameter is known by its name: which others there are, and where, does not matter.
TEST(ParameterArena, StartValuesBelongToNames) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto start_values = [&](std::vector<ParameterSpec> parameters) {
    ParameterArena arena(std::move(parameters), {}, *rig.device, *rig.communicator);
    arena.initialise(5, test_world().rank());
    std::map<std::string, std::vector<float>> values;
    arena.visit([&](const ParameterSpec& spec, std::int64_t, const Tensor& piece) {
      values[spec.name].insert(values[spec.name].end(), piece.as<float>(), piece.as<float>() + piece.size());
    });
    return values;
  };
  const std::vector<ParameterSpec> all = specs();
  const auto expected = start_values(all);
  for (const auto& [name, values] : start_values({all[3], all[0]})) EXPECT_EQ(values, expected.at(name)) << name;
  EXPECT_EQ(all[0].identity(), 0x9c6c8a5cu) << "as xxhsum -H2 gives it";
}

TEST(ParameterArena, RefusesTwoParametersOfOneName) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  std::vector<ParameterSpec> twice = specs();
  twice[3].name = "weight";
  EXPECT_THROW(ParameterArena(twice, {}, *rig.device, *rig.communicator), Error);
}

TEST(ParameterArena, EveryRankStartsWithTheValuesOfRankZero) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  ParameterArena arena(specs(), {}, *rig.device, *rig.communicator);
  const auto seed = static_cast<std::uint64_t>(100 + test_world().rank());  // only rank 0's counts
  arena.initialise(seed, test_world().rank());
  for (const std::string& hash : test_world().all_gather(hash_of(arena))) {
    EXPECT_EQ(hash, hash_of(arena));
  }
  if (test_world().rank() > 0) return;
  const auto values = master_values(arena, *rig.device);
  ASSERT_EQ(values.size(), static_cast<std::size_t>(37 * 111 + 1 + 37 + 15));
  double largest = 0.0;
  double sum = 0.0;
  for (std::size_t i = 0; i < 37 * 111; ++i) {
    largest = std::max(largest, std::abs(values[i]));
    sum += values[i];
  }
  EXPECT_LE(largest, 0.25);
  EXPECT_GT(largest, 0.24);
  EXPECT_NEAR(sum / (37 * 111), 0.0, 0.01);
  EXPECT_NE(values[0], values[1]);
  for (std::size_t i = 0; i < 37; ++i) EXPECT_EQ(values[37 * 111 + 1 + i], 0.0);
}

TEST(ParameterArena, PretrainedValuesAreReadOnRankZeroAloneOnce) {
  for (const bool shard : {false, true}) {
    Rig rig(DeviceKind::cpu, Precision::fp32);
    int reads = 0;
    auto pretrained = specs();
    pretrained[2].initial.read = [&reads] {
      ++reads;
      std::vector<float> values(37 + 4);  // a file may hold more
      std::iota(values.begin(), values.end(), 1.0f);
      return values;
    };
    ParameterArena arena(std::move(pretrained), {.zero = shard ? Zero::state : Zero::nothing}, *rig.device,
                         *rig.communicator);
    arena.initialise(5, test_world().rank());
    EXPECT_EQ(reads, test_world().rank() == 0 ? 1 : 0);
    const auto values = master_values(arena, *rig.device);
    for (std::size_t i = 0; i < 37; ++i) EXPECT_EQ(values[37 * 111 + 1 + i], 1.0 + static_cast<double>(i));
  }
}

TEST(ParameterArena, HashSeesNamesShapesAndValues) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto hash_with = [&](std::vector<ParameterSpec> changed, std::uint64_t seed) {
    ParameterArena arena(std::move(changed), {}, *rig.device, *rig.communicator);
    arena.initialise(seed, test_world().rank());
    return hash_of(arena);
  };
  auto renamed = specs();
  renamed[2].name = "bios";
  auto reshaped = specs();
  reshaped[3].shape = {5, 3};
  const std::string hash = hash_with(specs(), 5);
  EXPECT_NE(hash_with(renamed, 5), hash);
  EXPECT_NE(hash_with(reshaped, 5), hash);
  EXPECT_NE(hash_with(specs(), 6), hash);
}

/// Over all ranks, every element of every parameter is in one chunk of each replica, at its place in its rank's part.
TEST(ParameterArena, ChunksCoverEveryElementOnce) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  for (const Zero zero : {Zero::nothing, Zero::state}) {
    ArenaOptions options{100, 64};
    options.zero = zero;
    const ParameterArena arena(specs(), options, *rig.device, *rig.communicator);
    const int parts = zero == Zero::nothing ? 1 : test_world().size();
    EXPECT_EQ(arena.sharding().shards, parts);
    std::vector<double> covered(static_cast<std::size_t>(arena.plan().size), 0.0);
    std::int64_t place = 0;
    for (std::size_t b = 0; b < arena.plan().buckets.size(); ++b) {
      const Bucket& bucket = arena.plan().buckets[b];
      const std::int64_t part = bucket.size / parts;
      const std::int64_t begin = bucket.begin + test_world().rank() % parts * part;
      EXPECT_EQ(arena.reduced_gradients(b).size(), part);
      EXPECT_EQ(arena.reduced_gradients(b).data, static_cast<float*>(arena.bucket_gradients(0).data) + begin);
      const UpdateSlice slice = arena.update_slice(b);
      EXPECT_EQ(slice.weights, slice.master);
      EXPECT_EQ(slice.position, std::exchange(place, place + part) / 64);
      for (std::uint32_t i = 0; i < slice.chunk_count; ++i) {
        const UpdateChunk& chunk = slice.chunks[i];
        const ParameterSpec& spec = arena.specs()[chunk.parameter];
        EXPECT_EQ(chunk.decays, spec.decays ? 1 : 0);
        EXPECT_LE(chunk.count, kChunkElements);
        const auto offset = static_cast<std::int64_t>(chunk.offset_from(slice.position));
        EXPECT_LE(offset + chunk.count, part);
        EXPECT_EQ(chunk.element % 64, 0u);
        EXPECT_EQ(begin + offset, arena.plan().begin[chunk.parameter] + chunk.element);
        for (std::int64_t k = 0; k < chunk.count; ++k) covered.at(static_cast<std::size_t>(begin + offset + k)) += 1;
      }
    }
    for (double& count : covered) count = test_world().sum(count) * parts / test_world().size();
    for (std::size_t i = 0; i < arena.specs().size(); ++i) {
      const auto first = covered.begin() + arena.plan().begin[i];
      EXPECT_EQ(std::count(first, first + arena.specs()[i].size(), 1.0), arena.specs()[i].size());
    }
    EXPECT_EQ(std::accumulate(covered.begin(), covered.end(), 0.0), static_cast<double>(element_count(arena.specs())));
  }
}

/// With weights of another type than their masters, as on GPUs.
TEST(ParameterArena, ShardedStateIsAShareOfItAndGathersToTheSameValues) {
  FakeDevice device(false, Precision::bf16);
  const auto communicator =
      test_world().size() == 1 ? make_self_communicator(device) : make_mpi_communicator(test_world(), device);
  ArenaOptions options{100, 64};
  ParameterArena plain(specs(), options, device, *communicator);
  options.zero = Zero::state;
  ParameterArena sharded(specs(), options, device, *communicator);
  for (ParameterArena* arena : {&plain, &sharded}) arena->initialise(5, test_world().rank());
  EXPECT_EQ(hash_of(sharded), hash_of(plain));
  EXPECT_EQ(master_values(sharded, device), master_values(plain, device));
  const auto weights_of = [](const ParameterArena& arena) {
    std::vector<std::uint16_t> values;
    for (const Tensor& weight : arena.weights()) {
      values.insert(values.end(), weight.as<std::uint16_t>(), weight.as<std::uint16_t>() + weight.size());
    }
    return values;
  };
  EXPECT_EQ(weights_of(sharded), weights_of(plain));
  EXPECT_EQ(plain.state_bytes(), 12u * static_cast<std::size_t>(plain.plan().size));
  EXPECT_EQ(sharded.state_bytes() * static_cast<std::size_t>(test_world().size()), plain.state_bytes());

  const UpdateSlice slice = sharded.update_slice(1);  // what a rank changes in its part, all see
  if (slice.chunk_count > 0) static_cast<float*>(slice.master)[slice.chunks[0].offset_from(slice.position)] += 1.0f;
  const auto changed = master_values(sharded, device);
  const auto before = master_values(plain, device);
  int differences = 0;
  for (std::size_t i = 0; i < changed.size(); ++i) differences += changed[i] != before[i] ? 1 : 0;
  EXPECT_EQ(differences, test_world().sum(slice.chunk_count > 0 ? 1 : 0));
}

/// With weights of another type than their masters, as on GPUs.
TEST(ParameterArena, ASliceOfAllBucketsHasTheSameChunksAtTheSamePlaces) {
  FakeDevice device(false, Precision::bf16);
  const auto communicator =
      test_world().size() == 1 ? make_self_communicator(device) : make_mpi_communicator(test_world(), device);
  for (const Zero zero : kZeroStages) {
    ArenaOptions options{100, 64};
    options.units = {{"all", 0, specs().size()}};
    options.zero = zero;
    const ParameterArena arena(specs(), options, device, *communicator);
    const std::size_t buckets = arena.plan().buckets.size();
    const bool gathers = zero == Zero::state || zero == Zero::gradients;
    ASSERT_EQ(arena.buckets_per_slice(), gathers && test_world().size() > 1 ? 1 : buckets);
    if (arena.buckets_per_slice() == 1) continue;
    const UpdateSlice all = arena.update_slice(0, buckets);
    const auto places_of = [](const UpdateSlice& slice, const UpdateChunk& chunk) {
      const std::size_t offset = chunk.offset_from(slice.position);
      return std::vector<const void*>{
          static_cast<const std::uint16_t*>(slice.weights) + offset,
          static_cast<const std::uint16_t*>(slice.gradients) + offset, static_cast<const float*>(slice.master) + offset,
          static_cast<const float*>(slice.state[0]) + offset, static_cast<const float*>(slice.state[1]) + offset};
    };
    const UpdateChunk* next = all.chunks;
    for (std::size_t b = 0; b < buckets; ++b) {
      const UpdateSlice slice = arena.update_slice(b);
      EXPECT_EQ(slice.chunks, next);
      for (std::uint32_t i = 0; i < slice.chunk_count; ++i, ++next) {
        EXPECT_EQ(places_of(all, *next), places_of(slice, *next)) << b;
      }
    }
    EXPECT_EQ(next, all.chunks + all.chunk_count);
  }
}

/// With weights of another type than their masters, as on GPUs.
TEST(ParameterArena, StateOnTheHostIsPinnedAndHasTheSameValues) {
  FakeDevice device(false, Precision::bf16);
  const auto communicator =
      test_world().size() == 1 ? make_self_communicator(device) : make_mpi_communicator(test_world(), device);
  for (const bool has_masters : {true, false}) {
    for (const Zero zero : kZeroStages) {
      ArenaOptions options{100, 64};
      options.units = {{"all", 0, specs().size()}};
      options.zero = zero;
      options.has_masters = has_masters;
      device.pinned.clear();
      ParameterArena plain(specs(), options, device, *communicator);
      EXPECT_TRUE(device.pinned.empty());
      options.state_on_host = true;
      ParameterArena on_host(specs(), options, device, *communicator);
      const UpdateSlice slice = on_host.update_slice(0);
      std::set<const void*> state = {slice.state[0], slice.state[1]};
      if (has_masters) state.insert(slice.master);
      EXPECT_EQ(device.pinned, state);

      for (ParameterArena* arena : {&plain, &on_host}) arena->initialise(5, test_world().rank());
      EXPECT_EQ(hash_of(on_host), hash_of(plain));
      EXPECT_EQ(on_host.state_bytes(), plain.state_bytes());
      const std::vector<MemoryUse> memory = on_host.memory(), expected = plain.memory();
      ASSERT_EQ(memory.size(), expected.size());
      for (std::size_t i = 0; i < memory.size(); ++i) {
        EXPECT_EQ(memory[i].bytes, expected[i].bytes);
        EXPECT_FALSE(expected[i].on_host);
        EXPECT_EQ(memory[i].on_host, memory[i].purpose == "masters" || memory[i].purpose == "optimizer");
      }
    }
  }
}

TEST(ParameterArena, GradientsMayBeWiderThanWeights) {
  FakeDevice device(false, Precision::bf16);
  const auto communicator = make_self_communicator(device);
  ArenaOptions options{16500, 64};
  options.gradient_type = DType::f32;
  const ParameterArena arena(specs(), options, device, *communicator);
  EXPECT_EQ(arena.gradient_type(), DType::f32);
  EXPECT_EQ(arena.plan().buckets.size(), plan_buckets(specs(), 4, 16500, 64, 1).buckets.size());
  EXPECT_EQ(arena.gradients().at(2).dtype, DType::f32);
  EXPECT_EQ(arena.weights().at(2).dtype, DType::bf16);
  EXPECT_EQ(arena.update_slice(0).gradient_type, DType::f32);
  EXPECT_EQ(arena.update_slice(0).weight_type, DType::bf16);
  const auto distance = static_cast<float*>(arena.gradients()[3].data) - static_cast<float*>(arena.gradients()[0].data);
  EXPECT_EQ(distance, arena.plan().begin[3]);
  options.gradient_type = DType::u8;
  EXPECT_THROW(ParameterArena(specs(), options, device, *communicator), Error);
}

}  // namespace
}  // namespace ddptrain
