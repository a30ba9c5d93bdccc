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
#include "runtime/ops/optimizer.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/bucket_plan.h"

namespace ddptrain {

/// How an array of the training state lies on the ranks.
enum class Placement : std::uint8_t {
  replicated,  ///< All of it on every rank, the same.
  sharded,     ///< In parts, one on each rank.
  per_rank,    ///< Every rank has one of its own.
};

/// A named array of the training state, and what of it lies on this rank.
struct StateArray {
  struct Piece {
    std::int64_t begin;  ///< Its first element's place in the rank's part of the array, row-major.
    Tensor values;       ///< [count]
  };

  std::string name;
  Split part;  ///< What of the array pieces are of: all, or what this rank has where layers are split.
  DType dtype;
  Placement placement;
  std::vector<Piece> pieces;
  bool is_copy = false;  ///< See ParameterSpec.

  const Shape& shape() const { return part.whole; }
};

/// How each bucket is divided among ranks for the optimizer: into `parts` equal parts, of which this rank has `index`.
struct Partition {
  std::int64_t parts = 1;
  std::int64_t index = 0;
};

/// What is divided among the ranks, each stage with what is before it (ZeRO: Rajbhandari et al. 2020). The same as
/// nothing with one rank.
enum class Zero : std::uint8_t {
  nothing,
  state,      ///< Master weights and slots (P_os). Weights and gradients are whole on every rank.
  gradients,  ///< Gradients are whole only until they are summed (P_os+g).
  weights,    ///< Weights are whole only while they are used (P_os+g+p, as in FSDP).
};

struct ArenaOptions {
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t last_bucket_bytes = std::size_t{256} << 10;
  std::size_t optimizer_slots = 2;          ///< See OptimizerRule.
  std::optional<DType> gradient_type = {};  ///< Compute precision where empty, else the wider of the two.
  Zero zero = Zero::nothing;
  bool whole_chunks = false;  ///< A shard has whole chunks of parameters: see chunk_squares().
  bool by_peers = false;  ///< Zero::state: ranks read and write each other's gradients and weights where their GPUs do.
  std::vector<Unit> units = {};  ///< Of the model; for Zero::gradients and Zero::weights.
};

/// All parameters of a model in the order in which backward completes them: one allocation each for weights, gradients,
/// master weights and each slot of the optimizer, with the same layout. A gradient *is* its place in its bucket.
/// Padding is zero and stays zero.
///
/// Sharded, every bucket is W equal parts, and rank r keeps master weights and slots of part r alone, one part after
/// the other; with Zero::gradients also the summed gradients, with Zero::weights also the weights. What is whole only
/// for a while then lies where others lay before: bucket_gradients() and bucket_weights() of several buckets are one
/// memory.
class ParameterArena {
 public:
  /// Collective. The arena is destroyed before `device` and `communicator`.
  ParameterArena(std::vector<ParameterSpec> specs, const ArenaOptions& options, Device& device,
                 Communicator& communicator);

  Device& device() const { return device_; }
  Communicator& communicator() const { return communicator_; }  ///< To the ranks with the same parameters.
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const std::vector<Unit>& units() const { return units_; }
  const BucketPlan& plan() const { return plan_; }

  DType gradient_type() const { return gradient_type_; }
  const Partition& partition() const { return partition_; }  ///< One part: every rank updates everything.
  Zero zero() const { return zero_; }
  /// Where whole gradients and whole weights of buckets lie.
  const BucketPlaces& gradient_places() const { return gradient_places_; }
  const BucketPlaces& weight_places() const { return weight_places_; }
  /// Whether this rank's GPU reaches gradients and weights of all ranks: gradient_parts() and peer_weights() are there.
  /// The same on all ranks.
  bool reaches_peers() const { return !peer_weights_.empty(); }
  std::size_t state_bytes() const;  ///< Of what belongs to the optimizer alone: master weights and slots.
  std::vector<MemoryUse> memory() const;

  std::vector<Tensor> weights() const;                 ///< Compute precision; one view per parameter.
  std::vector<Tensor> gradients() const;               ///< gradient_type(); one view per parameter.
  Tensor bucket_weights(std::size_t bucket) const;     ///< [size of the bucket]
  Tensor bucket_gradients(std::size_t bucket) const;   ///< [size of the bucket]
  Tensor own_weights(std::size_t bucket) const;        ///< Those that this rank updates: all, or its part.
  Tensor reduced_gradients(std::size_t bucket) const;  ///< Those that this rank updates by: all, or its part.
  /// Of the bucket, in memory of plan().size / partition().parts elements that has this rank's part of each.
  Tensor kept_part(const Buffer& buffer, DType dtype, std::size_t bucket) const;
  UpdateSlice update_slice(std::size_t bucket) const;  ///< Of reduced_gradients(); without gradient_scale.
  /// The gradients of every rank, by rank, of which reduced_gradients() becomes the sum.
  std::vector<Tensor> gradient_parts(std::size_t bucket) const;
  /// For UpdateSlice::peer_weights.
  std::array<void*, PeerInboxes::kMaxRanks - 1> peer_weights(std::size_t bucket) const;
  bool whole_chunks() const { return first_square_.data() != nullptr; }
  /// Where chunks are whole, for ReductionOps::chunk_squares(): each parameter's first chunk among those of all
  /// parameters, on the device; and how many these are. Neither depends on buckets, shards or ranks. Those of
  /// copies stay as they are.
  const std::uint32_t* first_square() const { return static_cast<const std::uint32_t*>(first_square_.data()); }
  std::int64_t square_count() const { return square_count_; }

  /// The specs' initial values, those of rank 0 on every rank; slots zero. Collective; waits.
  void initialise(std::uint64_t seed, int rank);

  /// What is kept of each parameter: its weight, its master weight where that is another array, its moments.
  std::vector<StateArray> state() const;
  /// Shows the master values of each parameter in turn: all of them, on the device, in the order of the compute stream.
  /// Collective where sharded.
  void visit(const std::function<void(const ParameterSpec&, const Tensor& values)>& show) const;

 private:
  bool allocate_for_peers(std::size_t weight_bytes, std::size_t gradient_bytes);
  std::vector<Tensor> views(const Buffer& buffer, DType dtype, const BucketPlaces& places) const;
  Tensor part_of(const Tensor& bucket) const;  ///< Of this rank; all where not sharded.
  Tensor state(const Buffer& buffer, std::size_t bucket) const;
  StateArray array_of(const std::string& kind, std::size_t parameter, const Buffer& buffer, DType dtype) const;
  Tensor master(std::size_t bucket) const;  ///< This rank's part.
  void make_chunks();
  void number_chunks();
  std::vector<UpdateChunk> chunks_of(std::size_t bucket) const;
  Buffer allocate_staging(DType dtype) const;  ///< For the values of any bucket.

  std::vector<ParameterSpec> specs_;
  std::vector<Unit> units_;
  Zero zero_;
  BucketPlan plan_;
  BucketPlaces gradient_places_, weight_places_;
  Device& device_;
  Communicator& communicator_;
  DType compute_;
  DType gradient_type_;
  DType master_type_;
  Partition partition_;
  Buffer weights_;
  Buffer gradients_;
  Buffer own_weights_;               ///< Zero::weights
  Buffer own_gradients_;             ///< Zero::gradients and Zero::weights: summed.
  std::vector<void*> peer_weights_;  ///< By rank, as this rank's GPU reaches them; empty where it does not.
  std::vector<void*> peer_gradients_;
  Buffer master_;              ///< Empty where weights have the same type.
  std::vector<Buffer> slots_;  ///< The optimizer's state.
  Buffer chunks_;
  Buffer norms_;
  std::vector<std::uint32_t> first_chunk_;  ///< Per bucket, and the number of all chunks.
  Buffer first_square_;                     ///< Empty where shards cut chunks.
  std::int64_t square_count_ = 0;
};

/// The same Error on all ranks, with what each holds, where `hash` is not the same everywhere. Collective.
void check_same_on_all_ranks(const World& world, const std::string& hash, const std::string& what);

}  // namespace ddptrain
