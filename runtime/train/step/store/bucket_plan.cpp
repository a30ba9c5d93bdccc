#include "runtime/train/step/store/bucket_plan.h"

#include <algorithm>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Index of the first parameter of the last bucket; the number of parameters where there is no such bucket.
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

}  // namespace

BucketPlan plan_buckets(const std::vector<ParameterSpec>& specs, std::size_t element_size, std::size_t bucket_bytes,
                        std::size_t last_bucket_bytes, int world_size, std::int64_t alignment) {
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
    if (i == 0 || i == tail || full) {
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

}  // namespace ddptrain
