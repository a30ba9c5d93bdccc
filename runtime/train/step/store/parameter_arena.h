#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/device/peer_inboxes.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/bucket_plan.h"
#include "runtime/train/step/store/state_array.h"

namespace ddptrain {

struct ArenaOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t last_bucket_bytes = std::size_t{256} << 10;
  std::size_t optimizer_slots = 2;          ///< See OptimizerRule.
  std::optional<DType> gradient_type = {};  ///< The wider of this type and the compute precision is used.
  bool bf16_moments = false;                ///< The optimizer's slots are of bf16, rounded at random.
  /// Without master weights, the optimizer rounds to bf16 at random. Weights wider than bf16 then have values of bf16.
  bool has_masters = true;
  bool state_on_host = false;  ///< Master weights and slots are in pinned host memory, which kernels read and write.
  Zero zero = Zero::nothing;
  bool whole_chunks = false;  ///< Shards must not cut chunks of parameters: see chunk_squares().
  bool by_peers = false;  ///< Zero::state: ranks read and write each other's gradients and weights if their GPUs can.
  std::vector<Unit> units = {};  ///< The model's units; for Zero::gradients and Zero::weights.
  /// With Zero::nothing, buckets end where those of one rank with all of these parameters end, so that the norm of the
  /// gradient has the same sums. Empty, or the arena's own parameters: there is one stage.
  std::vector<ParameterSpec> of_all_stages = {};
};

/// All parameters of a model, in the order in which the backward pass completes their gradients. Weights, gradients,
/// master weights and each optimizer slot are one allocation each, with the same layout. A bucket is a contiguous range
/// of it, so gradients need no copies. Padding is zero and stays zero.
///
/// If the arena is sharded, every bucket has W equal shards. Rank r keeps the master weights and slots of shard r. With
/// Zero::gradients it also keeps the reduced gradients of shard r, and with Zero::weights the weights. Several buckets
/// then share the memory of bucket_gradients(), and with Zero::weights of bucket_weights(), one after another.
class ParameterArena {
 public:
  /// Collective. The arena is destroyed before `device` and `communicator`.
  ParameterArena(std::vector<ParameterSpec> specs, const ArenaOptions& options, Device& device,
                 Communicator& communicator);

  Device& device() const { return device_; }
  Communicator& communicator() const { return communicator_; }  ///< Connects the ranks with the same parameters.
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const std::vector<Unit>& units() const { return units_; }
  const BucketPlan& plan() const { return plan_; }
  /// For pipeline stages whose buckets are those of one rank: see ArenaOptions::of_all_stages.
  const std::optional<StagePlan>& stage_plan() const { return stage_plan_; }

  DType gradient_type() const { return gradient_type_; }
  const Sharding& sharding() const { return sharding_; }  ///< With one shard, every rank updates all parameters.
  Zero zero() const { return zero_; }
  /// The memory of whole gradients and whole weights of buckets.
  const BucketPlaces& gradient_places() const { return gradient_places_; }
  const BucketPlaces& weight_places() const { return weight_places_; }
  /// Whether this rank's GPU can access gradients and weights of all ranks, by gradient_shards() and peer_weights().
  /// All ranks have the same answer.
  bool reaches_peers() const { return !peer_weights_.empty(); }
  std::size_t state_bytes() const;  ///< Bytes of master weights and slots.
  std::vector<MemoryUse> memory() const;

  std::vector<Tensor> weights() const;                 ///< Compute precision; one view per parameter.
  std::vector<Tensor> gradients() const;               ///< gradient_type(); one view per parameter.
  Tensor bucket_weights(std::size_t bucket) const;     ///< [size of the bucket]
  Tensor bucket_gradients(std::size_t bucket) const;   ///< [size of the bucket]
  Tensor own_weights(std::size_t bucket) const;        ///< The weights that this rank updates: all, or its shard.
  Tensor reduced_gradients(std::size_t bucket) const;  ///< The gradients of own_weights(), for their sums.
  /// This rank's shard of the bucket in `buffer`, which has this rank's shards of all buckets (plan().size /
  /// sharding().shards elements).
  Tensor shard_in(const Buffer& buffer, DType dtype, std::size_t bucket) const;
  /// The chunks of one bucket, or of `buckets` = buckets_per_slice() buckets from `first` on, with their
  /// reduced_gradients(). Without gradient_scale.
  UpdateSlice update_slice(std::size_t first, std::size_t buckets = 1) const;
  /// All buckets if own_weights() and reduced_gradients() of all of them are contiguous, else 1.
  std::size_t buckets_per_slice() const;
  /// Every rank's gradients, by rank, of which reduced_gradients() is to become the sum.
  std::vector<Tensor> gradient_shards(std::size_t bucket) const;
  /// For UpdateSlice::peer_weights.
  std::array<void*, PeerInboxes::kMaxRanks - 1> peer_weights(std::size_t bucket) const;
  bool whole_chunks() const { return first_square_.data() != nullptr; }
  /// With whole chunks: the index of each parameter's first chunk among all chunks, then the number of chunks, in
  /// device memory. Neither depends on buckets, shards or ranks. Copies are ReductionOps::kNotCounted.
  const std::uint32_t* first_square() const { return static_cast<const std::uint32_t*>(first_square_.data()); }
  std::int64_t square_count() const { return square_count_; }

  /// Sets parameters to rank 0's initial values on every rank, and slots to zero. Collective; waits.
  void initialise(std::uint64_t seed, int rank);

  /// The arrays of each parameter: its weight, its master weight if that is another array, and its moments.
  std::vector<StateArray> state() const;
  /// Called with master values of a parameter from element `begin` on, in device memory.
  using Visit = std::function<void(const ParameterSpec&, std::int64_t begin, const Tensor& values)>;
  /// Shows the whole master values of all parameters piece by piece, parameter by parameter, in the order of the
  /// compute stream. `show` must be done with the values when it returns. Collective if sharded.
  void visit(const Visit& show) const;

 private:
  bool allocate_for_peers(std::size_t weight_bytes, std::size_t gradient_bytes);
  std::vector<Tensor> views(const Buffer& buffer, DType dtype, const BucketPlaces& places) const;
  Tensor shard_of(const Tensor& bucket) const;  ///< This rank's shard, or all if not sharded.
  StateArray array_of(const std::string& kind, std::size_t parameter, const Buffer& buffer, DType dtype) const;
  Tensor master(std::size_t bucket) const;  ///< This rank's shard.
  Buffer allocate_state(std::size_t bytes) const;
  void make_chunks();
  void number_chunks();
  void list_rounded();
  std::int64_t piece_size() const;  ///< Elements that are initialised, or shown by visit(), at once.
  template <class Work>
  void for_each_piece(const Work& work) const;
  void set_values(std::size_t bucket, std::int64_t begin, const Tensor& values);

  std::vector<ParameterSpec> specs_;
  std::vector<Unit> units_;
  Zero zero_;
  std::optional<StagePlan> stage_plan_;
  BucketPlan plan_;
  BucketPlaces gradient_places_;
  BucketPlaces weight_places_;
  Device& device_;
  Communicator& communicator_;
  DType compute_;
  DType gradient_type_;
  DType master_type_;
  DType slot_type_;
  bool has_masters_;
  bool state_on_host_;
  Sharding sharding_;
  Buffer weights_;
  Buffer gradients_;
  Buffer own_weights_;               ///< Zero::weights
  Buffer own_gradients_;             ///< Zero::gradients and Zero::weights: reduced.
  std::vector<void*> peer_weights_;  ///< Per rank: its weights' address on this rank's GPU. Empty if out of reach.
  std::vector<void*> peer_gradients_;
  Buffer master_;              ///< Empty if weights have the same type, and without master weights.
  std::vector<Buffer> slots_;  ///< The optimizer's state.
  Buffer chunks_;
  std::vector<std::uint32_t> first_chunk_;  ///< Per bucket; the last element is the number of all chunks.
  Buffer rounded_;                          ///< [parameters] RoundedParameter. Empty if nothing is rounded at random.
  Buffer first_square_;                     ///< Empty if shards cut chunks.
  std::int64_t square_count_ = 0;
};

}  // namespace ddptrain
