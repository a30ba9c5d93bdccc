#include "runtime/train/step/step_communication.h"

#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/ops/reduction.h"

namespace ddptrain {
namespace {

class Chooser {
 public:
  Chooser(const TrainerOptions& options, const ParameterArena& arena, Optimizer& optimizer)
      : options_(options),
        arena_(arena),
        optimizer_(optimizer),
        device_(arena.device()),
        communicator_(arena.communicator()),
        ranks_(virtual_ranks(options, communicator_.rank(), communicator_.size())),
        sharded_(arena.sharding().shards > 1),
        sums_every_pass_(arena.zero() >= Zero::gradients) {}

  StepCommunication choose() {
    DDP_CHECK(!sums_every_pass_ || options_.overlap < OverlapMode::off, "sharded gradients cannot wait for each other");
    if (ranks_.emulated && !sums_every_pass_) {
      made_.virtual_ranks = std::make_unique<VirtualRankSums>(arena_, ranks_.count, exchanges() && wider());
    }
    made_.weights = weights();
    made_.gradients = gradients();
    return std::move(made_);
  }

 private:
  /// Whether the sum of this rank's virtual ranks has more bits than a gradient.
  bool wider() const { return ranks_.count > 1 && master_dtype(device_.precision()) != arena_.gradient_type(); }
  /// With two ranks, an all-reduce adds two numbers. The result has one rounding and does not depend on the order.
  bool exchanges() const {
    return ranks_.emulated && options_.overlap != OverlapMode::none &&
           (communicator_.size() > 2 || (communicator_.size() == 2 && wider()));
  }

  std::unique_ptr<WeightStore> weights() {
    if (options_.overlap == OverlapMode::none) return make_replicated_weights();
    if (!sharded_) return make_replicated_weights(&communicator_);
    if (arena_.zero() == Zero::weights) return make_sharded_weights(arena_, device_, communicator_);
    if (!arena_.reaches_peers()) return make_gathered_weights(arena_);
    PeerMemory memory = communicator_.allocate_for_peers(device_.get<ReductionOps>().meeting_bytes());
    DDP_CHECK(!memory.of_rank.empty(), "ranks reach each other's parameters and nothing else");
    peers_ = memory.inboxes(communicator_.rank());
    made_.peer_memory = std::move(memory.mine);
    return make_peer_weights(arena_, peers_);
  }

  std::unique_ptr<GradientSync> gradients() {
    if (communicator_.size() == 1 && ranks_.count == 1) return without("one rank");
    if (options_.overlap == OverlapMode::none) return without("overlap none");
    if (sums_every_pass_) return sharded_gradients();
    if (exchanges()) {
      set_tree_path("");
      return make_tree_exchange(arena_, *made_.virtual_ranks);
    }
    if (sharded_ && arena_.reaches_peers()) {
      made_.path = {"peers", "sum, update and weights by the GPUs in each other's memory", ""};
      return make_peer_reduction(arena_, peers_);
    }
    return by_collectives();
  }

  std::unique_ptr<GradientSync> sharded_gradients() {
    if (ranks_.emulated) {
      set_tree_path("");
      return make_sharded_tree(arena_, ranks_.count);
    }
    set_path("gradients are sharded");
    return make_sharded_sums(arena_);
  }

  std::unique_ptr<GradientSync> without(const char* reason) {
    made_.path = {"none", "not summed", reason};
    return make_no_sync();
  }

  std::unique_ptr<GradientSync> by_collectives() {
    const std::string why_not_fused = find_inboxes();
    const bool fused = why_not_fused.empty();
    set_path(why_not_fused);
    if (fused) {
      return make_fused_last(arena_, [&optimizer = optimizer_, peers = peers_](std::size_t bucket, Stream stream) {
        optimizer.sum_and_update(bucket, peers, stream);
      });
    }
    if (sharded_) return make_reduce_scatter(arena_);
    return make_all_reduce(arena_);
  }

  /// Memory for the kernel that reduces and updates the last bucket, or why this kernel cannot be used. All ranks get
  /// the same answer, because the kernels of all ranks wait for each other.
  std::string find_inboxes() {
    const std::size_t last = arena_.plan().buckets.size() - 1;
    std::string why = what_forbids_fusing();
    std::size_t bytes = 0;
    if (why.empty()) {
      bytes = device_.get<OptimizerOps>().inbox_bytes(arena_.update_slice(last), communicator_.size());
      if (bytes == 0) why = "not for this number of ranks or size of the last bucket";
    }
    PeerMemory memory = communicator_.allocate_for_peers(bytes);
    if (memory.of_rank.empty()) {
      return why.empty() ? "GPUs do not reach each other's memory, or another rank cannot" : why;
    }
    peers_ = memory.inboxes(communicator_.rank());
    made_.peer_memory = std::move(memory.mine);
    return {};
  }

  std::string what_forbids_fusing() const {
    if (!options_.fused_sum || ranks_.count > 1) return "the fused sum is off";
    if (options_.clip_norm > 0.0f) return "clipping needs all sums before the first update";
    const OptimizerRule& rule = rule_of(options_.optimizer.kind);
    if (rule.whole_parameters()) return fmt::format("{} needs all sums before the first update", rule.name);
    if (!optimizer_.updates_at_once()) return "a step that may be left out needs all sums before the first update";
    if (sharded_) return "optimizer state is sharded";
    if (options_.bf16_moments || !options_.has_masters) return "the update rounds at random";
    return {};
  }

  void set_path(const std::string& why_not_fused) {
    const bool fused = why_not_fused.empty();
    if (ranks_.count > 1) {
      set_tree_path(fused ? " + fused last bucket" : "");
    } else if (communicator_.library() == "MPI") {
      made_.path = {"mpi", "MPI", communicator_.capturable() ? "" : "MPI was asked for"};
    } else if (!communicator_.symmetric()) {
      made_.path = {"plain", "NCCL plain", communicator_.why_not_symmetric()};
    } else if (!fused) {
      made_.path = {"symmetric", "NCCL symmetric", why_not_fused};
    } else {
      made_.path = {"symmetric+fused", "NCCL symmetric + fused last bucket", ""};
    }
  }

  void set_tree_path(const std::string& fused) {
    const std::string library = communicator_.library().empty() ? "" : communicator_.library() + ", ";
    made_.path = {"tree", fmt::format("{}binary tree of {}{}", library, counted(ranks_.all, "virtual rank"), fused),
                  "the order of additions is fixed"};
  }

  const TrainerOptions& options_;
  const ParameterArena& arena_;
  Optimizer& optimizer_;
  Device& device_;
  Communicator& communicator_;
  VirtualRanks ranks_;
  bool sharded_;
  bool sums_every_pass_;
  PeerInboxes peers_;
  StepCommunication made_;
};

}  // namespace

std::size_t StepCommunication::tree_bytes() const {
  return gradients->bytes() + (virtual_ranks ? virtual_ranks->bytes() : 0);
}

StepCommunication make_step_communication(const TrainerOptions& options, const ParameterArena& arena,
                                          Optimizer& optimizer) {
  return Chooser(options, arena, optimizer).choose();
}

}  // namespace ddptrain
