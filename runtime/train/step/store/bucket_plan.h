#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/train/model.h"

namespace ddptrain {

/// A contiguous stretch of the arena that one collective and one optimizer launch work on.
struct Bucket {
  std::size_t first_parameter = 0;
  std::size_t parameter_count = 0;
  std::int64_t begin = 0;  ///< First element.
  std::int64_t size = 0;   ///< Elements, with padding.
};

/// Where every parameter lies. Positions and sizes are in elements from the start of the arena.
struct BucketPlan {
  std::vector<Bucket> buckets;         ///< In the order in which backward completes them.
  std::vector<std::int64_t> begin;     ///< Per parameter.
  std::vector<std::size_t> bucket_of;  ///< Per parameter.
  std::int64_t size = 0;               ///< With padding.
};

inline constexpr std::int64_t kParameterAlignment = 64;       ///< Elements; parameters start at multiples of it.
inline constexpr std::int64_t kBucketAlignmentPerRank = 128;  ///< Elements; bucket sizes are multiples of W times it.

/// Where the contents of buckets lie in memory: each has a place of its own, or shares it with others.
struct BucketPlaces {
  std::vector<std::int64_t> begin;  ///< Per bucket: first element.
  std::vector<std::size_t> place;   ///< Per bucket: those of one number share their place.
  std::int64_t size = 0;            ///< Elements of all places.
};

/// A place for each bucket, as the plan has it.
BucketPlaces separate_places(const BucketPlan& plan);
/// Units whose parameters have the same shapes take turns in `ring` places: no two of `ring` that follow each other in
/// the plan share one. Error where a bucket is of several units.
BucketPlaces shared_places(const BucketPlan& plan, const std::vector<ParameterSpec>& specs,
                           const std::vector<Unit>& units, std::size_t ring);
/// Places in plan.buckets of those with parameters of the unit.
std::vector<std::size_t> buckets_of(const BucketPlan& plan, const Unit& unit);

/// Cuts `specs` (in their order) into buckets of at most `bucket_bytes`, or of one parameter where that is larger. The
/// parameters at the end that fit `last_bucket_bytes` together make up the last bucket: nothing is left to hide its
/// communication behind, so it should be small. Both sizes do not count padding. `alignment`: a larger one, in
/// elements, for parameters and for the W parts of a bucket. `units`: a bucket has parameters of one of these; empty:
/// of any. Error for a parameter without elements.
BucketPlan plan_buckets(const std::vector<ParameterSpec>& specs, std::size_t element_size, std::size_t bucket_bytes,
                        std::size_t last_bucket_bytes, int world_size, std::int64_t alignment = kParameterAlignment,
                        const std::vector<Unit>& units = {});

}  // namespace ddptrain
