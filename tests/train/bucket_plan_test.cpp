#include "runtime/train/step/store/bucket_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

std::vector<ParameterSpec> specs_of(const std::vector<Shape>& shapes) {
  std::vector<ParameterSpec> specs;
  for (const Shape& shape : shapes) specs.push_back({std::to_string(specs.size()), shape});
  return specs;
}

const std::vector<Shape> kRagged = {{128, 9216}, {10, 128}, {10}, {1}, {128}, {64, 3, 3, 32}, {64}, {1}, {32, 9}, {3}};

TEST(BucketPlan, CoversEveryParameterOnceInOrderAndAligned) {
  struct Case {
    std::size_t bucket_bytes, last_bucket_bytes;
    int world_size;
  };
  for (const auto& [bucket_bytes, last_bucket_bytes, world_size] :
       {Case{25 << 20, 256 << 10, 1}, Case{25 << 20, 0, 3}, Case{1, 0, 2}, Case{1, 5000, 7}, Case{6000, 1000, 4},
        Case{80000, 2, 3}, Case{25 << 20, 25 << 20, 8}}) {
    SCOPED_TRACE(fmt::format("{}, {}, {} ranks", bucket_bytes, last_bucket_bytes, world_size));
    const auto specs = specs_of(kRagged);
    const BucketPlan plan = plan_buckets(specs, 4, bucket_bytes, last_bucket_bytes, world_size);
    std::int64_t end = 0;
    std::size_t next_parameter = 0;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const Bucket& bucket = plan.buckets[b];
      EXPECT_EQ(bucket.begin, end);
      EXPECT_EQ(bucket.first_parameter, next_parameter);
      EXPECT_GT(bucket.parameter_count, 0u);
      EXPECT_EQ(bucket.size % (128 * world_size), 0);
      std::int64_t position = bucket.begin;
      std::size_t bytes = 0;
      for (std::size_t k = 0; k < bucket.parameter_count; ++k, ++next_parameter) {
        EXPECT_EQ(plan.bucket_of.at(next_parameter), b);
        EXPECT_GE(plan.begin.at(next_parameter), position);
        EXPECT_EQ(plan.begin.at(next_parameter) % 64, 0);
        position = plan.begin.at(next_parameter) + element_count(specs[next_parameter].shape);
        bytes += static_cast<std::size_t>(element_count(specs[next_parameter].shape)) * 4;
      }
      const bool last = b + 1 == plan.buckets.size();
      EXPECT_TRUE(bytes <= bucket_bytes || bucket.parameter_count == 1 || (last && bytes <= last_bucket_bytes));
      end = bucket.begin + bucket.size;
      EXPECT_LE(position, end);
    }
    EXPECT_EQ(next_parameter, specs.size());
    EXPECT_EQ(plan.size, end);
  }
}

TEST(BucketPlan, TailThatFitsIsTheLastBucket) {
  const auto specs = specs_of({{1000}, {200}, {100}, {50}, {10}});
  const BucketPlan plan = plan_buckets(specs, 4, 1 << 20, 4 * 170, 1);
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].parameter_count, 2u);
  EXPECT_EQ(plan.buckets[1].parameter_count, 3u);
}

TEST(BucketPlan, FillsBucketsGreedily) {
  const auto specs = specs_of({{100}, {100}, {100}, {500}, {100}});
  const BucketPlan plan = plan_buckets(specs, 2, 400, 0, 1);
  ASSERT_EQ(plan.buckets.size(), 4u);
  EXPECT_EQ(plan.buckets[0].parameter_count, 2u);
  EXPECT_EQ(plan.buckets[1].parameter_count, 1u);
  EXPECT_EQ(plan.buckets[2].first_parameter, 3u);
  EXPECT_EQ(plan.buckets[3].first_parameter, 4u);
}

TEST(BucketPlan, PartsAndParametersKeepALargerAlignment) {
  const BucketPlan plan = plan_buckets(specs_of(kRagged), 4, 5000, 100, 4, 2048);
  for (const std::int64_t begin : plan.begin) EXPECT_EQ(begin % 2048, 0);
  for (const Bucket& bucket : plan.buckets) EXPECT_EQ(bucket.size % (4 * 2048), 0);
}

TEST(BucketPlan, RefusesParametersWithoutElements) {
  EXPECT_THROW(plan_buckets(specs_of({{3}, {0, 5}}), 4, 100, 0, 1), Error);
  EXPECT_THROW(plan_buckets({}, 4, 100, 0, 1), Error);
}

/// Blocks, and something else before the last of them, as in a GPT.
struct Blocks {
  static constexpr std::size_t kBlocks = 7;
  std::vector<ParameterSpec> specs;
  std::vector<Unit> units;

  Blocks() {
    for (std::size_t block = 0; block < kBlocks; ++block) {
      if (block == kBlocks - 1) add("embedding", {{1000, 8}});
      add(fmt::format("block {}", block), {{64, 8}, {8}, {8, 64}});
    }
  }
  void add(const std::string& name, const std::vector<Shape>& shapes) {
    units.push_back({name, specs.size(), shapes.size()});
    for (const Shape& shape : shapes) specs.push_back({fmt::format("{}.{}", name, specs.size()), shape});
  }
  BucketPlan plan(std::size_t bucket_bytes) const { return plan_buckets(specs, 4, bucket_bytes, 0, 2, 64, units); }
};

TEST(BucketPlaces, BlocksTakeTurns) {
  const Blocks model;
  for (const std::size_t bucket_bytes : {std::size_t{1}, std::size_t{3000}, std::size_t{1} << 20}) {
    const BucketPlan plan = model.plan(bucket_bytes);
    const BucketPlaces places = shared_places(plan, model.specs, model.units, 3);
    std::int64_t size = 0;
    std::size_t blocks = 0;
    std::vector<std::size_t> first_places;
    for (const Unit& unit : model.units) {
      const std::vector<std::size_t> buckets = buckets_of(plan, unit);
      first_places.push_back(places.place[buckets.front()]);
      const bool is_new = unit.name == "embedding" || blocks++ < 3;
      for (const std::size_t bucket : buckets) {
        EXPECT_EQ(places.begin[bucket], places.begin[places.place[bucket]]);
        EXPECT_EQ(places.place[bucket] == bucket, is_new) << unit.name;
        if (!is_new) continue;
        EXPECT_EQ(places.begin[bucket], size);
        size += plan.buckets[bucket].size;
      }
    }
    EXPECT_EQ(places.size, size);
    EXPECT_EQ(first_places[3], first_places[0]);
    EXPECT_EQ(first_places[5], first_places[2]);
    EXPECT_EQ(first_places[7], first_places[0]) << "the embedding has a place of its own";
  }
}

TEST(BucketPlaces, AreOfBucketsOfOneUnit) {
  const Blocks model;
  const BucketPlan mixed = plan_buckets(model.specs, 4, 1 << 20, 0, 2);
  EXPECT_THROW(shared_places(mixed, model.specs, model.units, 3), Error);
  const BucketPlaces separate = separate_places(mixed);
  EXPECT_EQ(separate.size, mixed.size);
  for (std::size_t b = 0; b < mixed.buckets.size(); ++b) EXPECT_EQ(separate.begin[b], mixed.buckets[b].begin);
}

}  // namespace
}  // namespace ddptrain
