#include "runtime/train/parameter_arena.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "tests/train/rig.h"

namespace ddptrain {
namespace {

std::vector<ParameterSpec> specs() {
  return {{"weight", {37, 111}, InitialValue::uniform(0.25f), true},
          {"one", {1}, InitialValue::uniform(0.5f), true},
          {"bias", {37}, InitialValue{}, false},
          {"tail", {3, 5}, InitialValue::uniform(1.0f)}};
}

TEST(ParameterArena, StartValuesAndHashDoNotDependOnBuckets) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  std::set<std::string> hashes;
  for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{16500}, std::size_t{1} << 20}) {
    ParameterArena arena(specs(), {bucket_bytes, 64, true}, *rig.backend, *rig.communicator);
    arena.initialise(5, test_world().rank());
    hashes.insert(arena.parameter_hash());
  }
  EXPECT_EQ(hashes.size(), 1u);
}

TEST(ParameterArena, EveryRankStartsWithTheValuesOfRankZero) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  ParameterArena arena(specs(), {}, *rig.backend, *rig.communicator);
  const auto seed = static_cast<std::uint64_t>(100 + test_world().rank());  // only rank 0's counts
  arena.initialise(seed, test_world().rank());
  for (const std::string& hash : test_world().all_gather(arena.parameter_hash())) {
    EXPECT_EQ(hash, arena.parameter_hash());
  }
  if (test_world().rank() > 0) return;
  const auto values = arena.master_values();
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

TEST(ParameterArena, HashSeesNamesShapesAndValues) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const auto hash_of = [&](std::vector<ParameterSpec> changed, std::uint64_t seed) {
    ParameterArena arena(std::move(changed), {}, *rig.backend, *rig.communicator);
    arena.initialise(seed, test_world().rank());
    return arena.parameter_hash();
  };
  auto renamed = specs();
  renamed[2].name = "bios";
  auto reshaped = specs();
  reshaped[3].shape = {5, 3};
  const std::string hash = hash_of(specs(), 5);
  EXPECT_NE(hash_of(renamed, 5), hash);
  EXPECT_NE(hash_of(reshaped, 5), hash);
  EXPECT_NE(hash_of(specs(), 6), hash);
}

TEST(ParameterArena, ViewsAndChunksCoverTheParameters) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  ParameterArena arena(specs(), {100, 64, true}, *rig.backend, *rig.communicator);
  EXPECT_EQ(arena.parameter_count(), 37 * 111 + 1 + 37 + 15);
  std::vector<std::int64_t> covered(specs().size(), 0);
  for (std::size_t bucket = 0; bucket < arena.plan().buckets.size(); ++bucket) {
    const UpdateSlice slice = arena.update_slice(bucket);
    for (std::uint32_t i = 0; i < slice.chunk_count; ++i) {
      const UpdateChunk& chunk = slice.chunks[i];
      EXPECT_EQ(chunk.begin, arena.plan().begin[chunk.parameter] + covered[chunk.parameter]);
      EXPECT_LE(chunk.count, kChunkElements);
      EXPECT_EQ(chunk.decays, specs()[chunk.parameter].decays ? 1u : 0u);
      EXPECT_EQ(arena.plan().bucket_of[chunk.parameter], bucket);
      covered[chunk.parameter] += chunk.count;
    }
  }
  for (std::size_t i = 0; i < covered.size(); ++i) EXPECT_EQ(covered[i], element_count(specs()[i].shape));
}

}  // namespace
}  // namespace ddptrain
