#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/core/step.h"
#include "runtime/core/stochastic_rounding.h"
#include "runtime/core/tensor.h"
#include "runtime/device/peer_inboxes.h"
#include "runtime/ops/family.h"
#include "runtime/ops/optimizers/learning_rate_schedule.h"

namespace ddptrain {

/// An optimizer is a rule that updates each weight w by its gradient g and by state that it keeps for the weight.
enum class OptimizerKind : std::uint8_t {
  sgd,    ///< m = momentum m + g + decay w; w -= lr m.
  adam,   ///< Kingma and Ba 2015, with bias correction; decay is added to g.
  adamw,  ///< Loshchilov and Hutter 2019: adam with decay decoupled.
  lion,   ///< Chen et al. 2023: w -= lr (sign(beta1 m + (1 - beta1) g) + decay w); m = beta2 m + (1 - beta2) g.
  /// Jordan et al. 2024, for chunks of matrices: m = momentum m + g; d = the orthogonal matrix next to g + momentum m;
  /// w -= lr (scale d + decay w). The first step is add_momentum(), the second OrthogonalOps, the third update().
  /// adamw for all other chunks.
  muon,
  /// You et al. 2020: adamw with the learning rate of each parameter multiplied by its trust ratio |w| / |r|, where r
  /// is what adamw multiplies by the learning rate, and w is the weight before the update. The ratio is 1 if one of the
  /// norms is 0, and for parameters without weight decay (norms, biases). The first step is update_squares(), the
  /// second trust_ratios(), the third update().
  lamb,
};

struct OptimizerRule {
  const char* name;
  std::size_t slots;      ///< Arrays of state, each as long as the weights.
  bool matrices = false;  ///< Whether the update of a matrix needs the gradient of the whole matrix.
  bool norms = false;     ///< Whether the update of a parameter needs norms of the whole parameter.

  constexpr bool whole_parameters() const { return matrices || norms; }
};

/// By OptimizerKind. A rule is an enumerator, a line here, and its step in optimizer_rules.h.
inline constexpr std::array kOptimizerRules = {
    OptimizerRule{"sgd", 1},
    OptimizerRule{"adam", 2},
    OptimizerRule{"adamw", 2},
    OptimizerRule{"lion", 1},
    OptimizerRule{.name = "muon", .slots = 2, .matrices = true},
    OptimizerRule{.name = "lamb", .slots = 2, .norms = true},
};
inline constexpr std::size_t kMostOptimizerSlots = 2;

/// Throws std::out_of_range if there is no such rule.
constexpr const OptimizerRule& rule_of(OptimizerKind kind) {
  return kOptimizerRules.at(static_cast<std::size_t>(kind));
}

struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adam;
  LrSchedule schedule;
  float momentum = 0.9f;        ///< sgd only.
  float muon_momentum = 0.95f;  ///< muon only.
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
  std::uint64_t rounding_seed = 0;  ///< Of the random bits of what is rounded at random.
};

inline constexpr std::uint32_t kChunkElements = 2048;
/// Elements. Chunks start at multiples of it, in arrays and in parameters.
inline constexpr std::uint32_t kChunkAlignment = 64;

/// A stretch of one parameter; at most `kChunkElements` elements, so that one thread block updates it.
struct alignas(16) UpdateChunk {
  std::uint32_t position = 0;   ///< Of the first element in the arena's arrays, in units of kChunkAlignment elements.
  std::uint32_t element = 0;    ///< First element, counted from the start of the parameter.
  std::uint16_t parameter = 0;  ///< Index of the parameter in the arena.
  std::uint16_t count : 14 = 0;
  std::uint16_t of_matrix : 1 = 0;  ///< muon: the chunk is a part of a matrix.
  std::uint16_t decays : 1 = 0;     ///< Weight decay applies.

  /// Elements between `start`, a position, and the chunk.
  constexpr std::size_t offset_from(std::uint32_t start) const {
    return static_cast<std::size_t>(position - start) * kChunkAlignment;
  }
};
static_assert(sizeof(UpdateChunk) == 16);

/// Chunks that one optimizer launch updates: the chunks of one bucket or of all, or of this rank's shards of them
/// (sorted by position, parameters contiguous). All arrays start at the slice's first element. `chunks` lies where the
/// device computes.
struct UpdateSlice {
  const UpdateChunk* chunks = nullptr;
  std::uint32_t chunk_count = 0;
  std::uint32_t position = 0;        ///< Of the first element, as UpdateChunk::position.
  DType weight_type = DType::f32;    ///< bf16, or the type of master.
  DType gradient_type = DType::f32;  ///< bf16, or the type of master.
  DType state_type = DType::f32;     ///< bf16, rounded at random, or the type of master.
  /// There are no master weights: the weights alone are updated, in f32, and rounded to bf16 at random. On CPUs they
  /// may be of the type of master, with values of bf16.
  bool masterless = false;
  const RoundedParameter* parameters = nullptr;  ///< By UpdateChunk::parameter, if anything is rounded at random.
  void* weights = nullptr;  ///< The same pointer as master if the types agree, and without master weights.
  /// The same weights in the memory of other ranks, which are written too; null: of no rank. On GPUs only.
  std::array<void*, PeerInboxes::kMaxRanks - 1> peer_weights = {};
  void* master = nullptr;                             ///< master_dtype; see `masterless`.
  std::array<void*, kMostOptimizerSlots> state = {};  ///< As many as the rule has slots; of state_type.
  void* gradients = nullptr;  ///< Summed over all ranks. muon: for chunks of matrices, update() reads directions here.
  /// One factor for every gradient (clipping), or null. NaN: the step is not taken, and nothing changes but
  /// `nonfinite`.
  const float* gradient_scale = nullptr;
  const float* trust_ratios = nullptr;  ///< lamb: by UpdateChunk::parameter. Null: all are 1.
  NonFinite* nonfinite = nullptr;       ///< Where gradients that are not finite are noted (`first`); null: nowhere.
  bool yields = false;  ///< The kernel takes only multiprocessors that kernels of other streams leave free.

  bool rounds_at_random() const { return masterless || state_type == DType::bf16; }
};

/// Sums of squares over a chunk of a parameter.
struct UpdateSquares {
  float weights = 0.0f;
  float update = 0.0f;  ///< Of what is multiplied by the learning rate.
};

/// The number of the step, and the update of parameters by their gradients.
class OptimizerOps : public Family<OptimizerOps> {
 public:
  /// state->step += steps, and logs when these steps have ended (StepLog). 0 steps: starts the clock of the log.
  virtual void advance(StepState* state, std::uint32_t steps, Stream stream) = 0;
  virtual void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) = 0;
  /// muon, for the chunks of matrices in the slice: m = momentum m + g, and g = g + momentum m (Nesterov) takes the
  /// place of the gradient. g is scaled by slice.gradient_scale before. Does for `nonfinite` and a NaN scale what
  /// update() does.
  virtual void add_momentum(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step,
                            Stream stream) = 0;
  /// lamb: squares[first_chunk[p] + i] = the sums of chunk i of parameter p, which begins at its element i *
  /// kChunkElements, for every chunk of the slice with weight decay. The update is the one that update() makes of the
  /// same slice in this step; nothing but `squares` changes. The bits depend neither on buckets nor on shards.
  virtual void update_squares(const OptimizerSettings& settings, const UpdateSlice& slice,
                              const std::uint32_t* first_chunk, UpdateSquares* squares, StepRef step,
                              Stream stream) = 0;
  /// lamb: ratios[p] (f32) = the trust ratio of parameter p, whose chunks are squares[first_chunk[p]] to
  /// squares[first_chunk[p + 1] - 1].
  virtual void trust_ratios(const UpdateSquares* squares, const std::uint32_t* first_chunk, const Tensor& ratios,
                            Stream stream) = 0;
  /// Bytes of zeroed memory that sum_and_update() of this slice needs on each of `ranks` ranks. 0 if there is no
  /// sum_and_update(): on CPUs, for more than PeerInboxes::kMaxRanks ranks, for large slices, and if anything is
  /// rounded at random.
  virtual std::size_t inbox_bytes(const UpdateSlice& slice, int ranks) const = 0;
  /// Updates by the sum of slice.gradients over ranks. The sum is computed in f32 over a binary tree as in
  /// ReductionOps::add_tree() (for any number of ranks: the last ones stay alone if they have no neighbour) and rounded
  /// once to the gradients' type, so all ranks get the same bits. The gradients stay as they are. Collective: the
  /// ranks' kernels wait for each other on their GPUs.
  virtual void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                              StepRef step, Stream stream) = 0;

  static std::unique_ptr<OptimizerOps> on_cpu(Device& device);
  static std::unique_ptr<OptimizerOps> on_cuda(Device& device);
};

}  // namespace ddptrain
