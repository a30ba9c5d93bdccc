#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// A contiguous range of the arena, for one collective. The optimizer updates one bucket or all in a launch.
struct Bucket {
  std::size_t first_parameter = 0;
  std::size_t parameter_count = 0;
  std::int64_t begin = 0;  ///< First element.
  std::int64_t size = 0;   ///< Elements, with padding.
};

/// How the optimizer divides each bucket among ranks: into `shards` equal shards. This rank has shard `index`.
struct Sharding {
  std::int64_t shards = 1;
  std::int64_t index = 0;
};

/// What is sharded over the ranks (ZeRO: Rajbhandari et al. 2020). Each value includes the ones before it. With one
/// rank all are the same.
enum class Zero : std::uint8_t {
  nothing,
  state,      ///< Master weights and optimizer slots (P_os).
  gradients,  ///< Gradients, which are whole only until they are reduced (P_os+g).
  weights,    ///< Weights, which are whole only while they are used (P_os+g+p, as in FSDP).
};

/// The layout of the arena. Positions and sizes are in elements.
struct BucketPlan {
  std::vector<Bucket> buckets;         ///< In the order in which the backward pass completes them.
  std::vector<std::int64_t> begin;     ///< Per parameter.
  std::vector<std::size_t> bucket_of;  ///< Per parameter.
  std::int64_t size = 0;               ///< With padding.
};

inline constexpr std::int64_t kParameterAlignment = 64;       ///< Elements. Parameters start at multiples of it.
inline constexpr std::int64_t kBucketAlignmentPerRank = 128;  ///< Elements. Bucket sizes are multiples of W times it.
static_assert(kParameterAlignment % kChunkAlignment == 0 && kBucketAlignmentPerRank % kChunkAlignment == 0);

/// The memory of buckets. Buckets may share memory: they use it one after another.
struct BucketPlaces {
  std::vector<std::int64_t> begin;  ///< Per bucket: first element.
  std::vector<std::size_t> place;   ///< Per bucket: number of its place. Buckets with the same number share memory.
  std::int64_t size = 0;            ///< Elements of all places.
};

/// The buckets of all stages, as one rank with all parameters plans them, and where this stage's are among them.
struct StagePlan {
  BucketPlan all;
  std::size_t first = 0;  ///< Index of this stage's first parameter among those of all stages.

  /// The number, among the buckets of all stages, of the bucket with this stage's parameter `parameter`.
  std::size_t number_of(std::size_t parameter) const { return all.bucket_of.at(first + parameter); }
};

/// Memory of its own for each bucket.
BucketPlaces separate_places(const BucketPlan& plan);
/// Units whose parameters have the same shapes share `ring` places in turn: `ring` consecutive ones have different
/// places. Error if a bucket has parameters of several units.
BucketPlaces shared_places(const BucketPlan& plan, const std::vector<ParameterSpec>& specs,
                           const std::vector<Unit>& units, std::size_t ring);
/// Indices of the buckets with parameters of the unit.
std::vector<std::size_t> buckets_of(const BucketPlan& plan, const Unit& unit);

/// Divides `specs`, in their order, into buckets of at most `bucket_bytes`; a larger parameter has a bucket of its own.
/// The parameters at the end that fit into `last_bucket_bytes` are the last bucket. No compute overlaps with its
/// communication, so it should be small. Both sizes are without padding. `alignment`: in elements, for parameters and
/// for the W shards of a bucket. `units`: no bucket has parameters of two units; empty: buckets may have any
/// parameters. Error for a parameter without elements.
BucketPlan plan_buckets(const std::vector<ParameterSpec>& specs, std::size_t element_size, std::size_t bucket_bytes,
                        std::size_t last_bucket_bytes, int world_size, std::int64_t alignment = kParameterAlignment,
                        const std::vector<Unit>& units = {});

/// The plan of a stage. A bucket of `of_all` of which the stage has all parameters is one of its buckets, too. Of a
/// bucket that it shares with other stages, it has its own parameters, at the same distances from each other.
BucketPlan plan_of_stage(const StagePlan& of_all, const std::vector<ParameterSpec>& specs, std::size_t element_size,
                         int world_size);

/// Where this rank's shard of the bucket begins in an array of this rank's shards of all buckets.
std::int64_t shard_place(const Bucket& bucket, const Sharding& sharding);
/// The chunks of parameters within this rank's shard of the bucket, for the optimizer. Their positions are those in an
/// array of this rank's shards of all buckets.
std::vector<UpdateChunk> chunks_of(std::size_t bucket, const BucketPlan& plan, const std::vector<ParameterSpec>& specs,
                                   const Sharding& sharding);

}  // namespace ddptrain
