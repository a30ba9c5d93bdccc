#include "runtime/train/step/store/bucket_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Index of the first parameter of the last bucket, or the number of parameters if there is no last bucket.
std::size_t tail_begin(const std::vector<ParameterSpec>& specs, std::size_t element_size, std::size_t bytes) {
  std::size_t first = specs.size();
  std::size_t used = 0;
  while (first > 0) {
    used += static_cast<std::size_t>(specs[first - 1].size()) * element_size;
    if (used > bytes) break;
    --first;
  }
  return first;
}

/// The sizes of the buckets' parameters, with padding. The size of the bucket follows its parameters.
std::vector<Shape> shapes_of(const BucketPlan& plan, const std::vector<ParameterSpec>& specs,
                             const std::vector<std::size_t>& buckets) {
  std::vector<Shape> shapes;
  for (const std::size_t index : buckets) {
    const Bucket& bucket = plan.buckets[index];
    for (std::size_t i = 0; i < bucket.parameter_count; ++i) {
      const ParameterSpec& spec = specs[bucket.first_parameter + i];
      shapes.push_back(spec.shape);
      shapes.push_back({spec.padded_rows});
    }
    shapes.push_back({bucket.size});
  }
  return shapes;
}

}  // namespace

std::vector<std::size_t> buckets_of(const BucketPlan& plan, const Unit& unit) {
  std::vector<std::size_t> buckets;
  for (std::size_t i = unit.first; i < unit.first + unit.count; ++i) {
    if (buckets.empty() || buckets.back() != plan.bucket_of.at(i)) buckets.push_back(plan.bucket_of.at(i));
  }
  return buckets;
}

BucketPlaces separate_places(const BucketPlan& plan) {
  BucketPlaces places;
  for (const Bucket& bucket : plan.buckets) {
    places.place.push_back(places.place.size());
    places.begin.push_back(bucket.begin);
  }
  places.size = plan.size;
  return places;
}

BucketPlaces shared_places(const BucketPlan& plan, const std::vector<ParameterSpec>& specs,
                           const std::vector<Unit>& units, std::size_t ring) {
  struct Kind {
    std::vector<std::vector<std::size_t>> buckets;  // of units that do not share the places of others
    std::size_t units = 0;
  };
  std::vector<Unit> in_order = units;
  std::ranges::sort(in_order, {}, &Unit::first);
  std::map<std::vector<Shape>, Kind> kinds;  // the key has the shapes of a unit's parameters, bucket by bucket
  BucketPlaces places{std::vector<std::int64_t>(plan.buckets.size()), std::vector<std::size_t>(plan.buckets.size())};
  for (const Unit& unit : in_order) {
    const std::vector<std::size_t> mine = buckets_of(plan, unit);
    std::size_t parameters = 0;
    for (const std::size_t bucket : mine) parameters += plan.buckets[bucket].parameter_count;
    DDP_CHECK(parameters == unit.count, "buckets with parameters of unit {} have others, too", unit.name);
    Kind& kind = kinds[shapes_of(plan, specs, mine)];
    const std::size_t turn = kind.units++ % ring;
    const bool is_new = turn == kind.buckets.size();
    if (is_new) kind.buckets.push_back(mine);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      const std::size_t place = kind.buckets[turn][i];
      places.place[mine[i]] = place;
      if (is_new) places.begin[place] = std::exchange(places.size, places.size + plan.buckets[place].size);
      places.begin[mine[i]] = places.begin[place];
    }
  }
  return places;
}

BucketPlan plan_buckets(const std::vector<ParameterSpec>& specs, std::size_t element_size, std::size_t bucket_bytes,
                        std::size_t last_bucket_bytes, int world_size, std::int64_t alignment,
                        const std::vector<Unit>& units) {
  DDP_CHECK(!specs.empty(), "a model without parameters");
  DDP_CHECK(world_size > 0, "world size {}", world_size);
  const std::int64_t multiple = std::max(kBucketAlignmentPerRank, alignment) * world_size;
  const std::size_t tail = tail_begin(specs, element_size, last_bucket_bytes);

  BucketPlan plan;
  std::size_t used = 0;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::int64_t count = specs[i].size();
    DDP_CHECK(count > 0, "parameter {} ({}) has no elements", i, specs[i].name);
    const std::size_t bytes = static_cast<std::size_t>(count) * element_size;
    const bool full = i > 0 && i < tail && used + bytes > bucket_bytes;
    const bool starts_unit = std::ranges::find(units, i, &Unit::first) != units.end();
    if (i == 0 || i == tail || full || starts_unit) {
      plan.size = round_up(plan.size, multiple);
      if (i > 0) plan.buckets.back().size = plan.size - plan.buckets.back().begin;
      plan.buckets.push_back({i, 0, plan.size, 0});
      used = 0;
    }
    plan.size = round_up(plan.size, alignment);
    plan.begin.push_back(plan.size);
    plan.bucket_of.push_back(plan.buckets.size() - 1);
    plan.size += specs[i].padded_size();
    ++plan.buckets.back().parameter_count;
    used += bytes;
  }
  plan.size = round_up(plan.size, multiple);
  plan.buckets.back().size = plan.size - plan.buckets.back().begin;
  return plan;
}

BucketPlan plan_of_stage(const StagePlan& of_all, const std::vector<ParameterSpec>& specs, std::size_t element_size,
                         int world_size) {
  std::vector<Unit> starts;
  for (std::size_t i = 1; i < specs.size(); ++i) {
    if (of_all.number_of(i) != of_all.number_of(i - 1)) starts.push_back({"bucket", i, 1});
  }
  constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();
  return plan_buckets(specs, element_size, kNoLimit, 0, world_size, kParameterAlignment, starts);
}

std::int64_t shard_place(const Bucket& bucket, const Sharding& sharding) { return bucket.begin / sharding.shards; }

std::vector<UpdateChunk> chunks_of(std::size_t index, const BucketPlan& plan, const std::vector<ParameterSpec>& specs,
                                   const Sharding& sharding) {
  const Bucket& bucket = plan.buckets[index];
  const std::int64_t shard = bucket.size / sharding.shards;
  const std::int64_t begin = bucket.begin + sharding.index * shard;
  if (bucket.size > std::int64_t{UINT32_MAX}) {  // UpdateChunk::element has 32 bits
    usage_error("{} has {} elements{}, and a gradient bucket has less than 2^32. Use {}.",
                specs[bucket.first_parameter].name, bucket.size,
                bucket.parameter_count > 1 ? " with the other parameters of its bucket" : "",
                bucket.parameter_count > 1 ? "a smaller --bucket-mb or a smaller model" : "a smaller model");
  }
  const std::int64_t first = shard_place(bucket, sharding);
  constexpr std::int64_t kLimit = std::int64_t{kChunkAlignment} << 32;
  if (first + shard > kLimit) {
    usage_error(
        "A rank can update 2^38 parameters at most. Use --zero, --tp or --pp on more ranks, or a smaller model.");
  }
  std::vector<UpdateChunk> chunks;
  for (std::size_t k = 0; k < bucket.parameter_count; ++k) {
    const std::size_t parameter = bucket.first_parameter + k;
    const std::int64_t origin = plan.begin[parameter];
    const std::int64_t end = std::min(origin + specs[parameter].size(), begin + shard);
    for (std::int64_t at = std::max(origin, begin); at < end; at += kChunkElements) {
      chunks.push_back({.position = static_cast<std::uint32_t>((first + at - begin) / kChunkAlignment),
                        .element = static_cast<std::uint32_t>(at - origin),
                        .parameter = static_cast<std::uint16_t>(parameter),
                        .count = static_cast<std::uint16_t>(std::min<std::int64_t>(kChunkElements, end - at)),
                        .of_matrix = !specs[parameter].matrix_rows.empty(),
                        .decays = specs[parameter].decays});
    }
  }
  return chunks;
}

}  // namespace ddptrain
