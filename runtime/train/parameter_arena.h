#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/model.h"
#include "runtime/backend/backend.h"
#include "runtime/comm/communicator.h"
#include "runtime/train/bucket_plan.h"

namespace ddptrain {

struct ArenaOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t last_bucket_bytes = std::size_t{256} << 10;
  bool second_moment = true;  ///< The optimizer keeps two moments.
};

/// All parameters of a model in the order in which backward completes them: one allocation each for weights, gradients,
/// master weights and optimizer moments, with the same layout. A gradient *is* its place in its bucket.
/// Padding is zero and stays zero.
class ParameterArena {
 public:
  /// Collective. The arena is destroyed before `backend` and `communicator`.
  ParameterArena(std::vector<ParameterSpec> specs, const ArenaOptions& options, Backend& backend,
                 Communicator& communicator);

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const BucketPlan& plan() const { return plan_; }
  std::int64_t parameter_count() const;  ///< Elements of all parameters, without padding.

  std::vector<Tensor> weights() const;                 ///< Compute precision; one view per parameter.
  std::vector<Tensor> gradients() const;               ///< Compute precision; one view per parameter.
  Tensor bucket_gradients(std::size_t bucket) const;   ///< [size of the bucket]
  UpdateSlice update_slice(std::size_t bucket) const;  ///< Without gradient_scale.

  /// Start values of rank 0 (see ParameterSpec) on every rank, moments zero. Collective; waits.
  void initialise(std::uint64_t seed, int rank);

  /// Hash of names, shapes and f32 master values, 16 hexadecimal digits; the same for any bucket size. Waits.
  std::string parameter_hash() const;
  /// Master values of all parameters, one after the other without padding. Waits.
  std::vector<double> master_values() const;

 private:
  std::vector<Tensor> views(const Buffer& buffer) const;
  void* master() const { return master_.data() != nullptr ? master_.data() : weights_.data(); }
  void make_chunks();

  std::vector<ParameterSpec> specs_;
  BucketPlan plan_;
  Backend& backend_;
  Communicator& communicator_;
  DType compute_;
  DType master_type_;
  Buffer weights_;
  Buffer gradients_;
  Buffer master_;  ///< Empty where weights have the same type.
  Buffer first_moment_;
  Buffer second_moment_;
  Buffer chunks_;
  Buffer norms_;
  std::vector<std::uint32_t> first_chunk_;  ///< Per bucket, and the number of all chunks.
};

/// Throws Error naming the ranks where `hash` is not that of rank 0. Collective.
void check_same_on_all_ranks(const World& world, const std::string& hash, const std::string& what);

}  // namespace ddptrain
