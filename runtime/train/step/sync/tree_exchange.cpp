#include <bit>

#include "runtime/core/error.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class TreeExchange final : public GradientSync {
 public:
  TreeExchange(const ParameterArena& arena, const VirtualRankSums& below)
      : arena_(arena),
        below_(below),
        ops_(arena.device().get<ReductionOps>()),
        communicator_(arena.communicator()),
        sent_type_(below.wide() ? master_dtype(arena.device().precision()) : arena.gradient_type()),
        gathers_(arena.sharding().shards == 1),
        gathering_(arena.plan().buckets.size()),
        spans_(arena) {
    const int ranks = communicator_.size();
    DDP_CHECK(std::has_single_bit(static_cast<unsigned>(ranks)), "a tree of {} ranks", ranks);
    const std::size_t bytes = static_cast<std::size_t>(arena.plan().size) * size_of(sent_type_);
    // From the same allocator as the memory that is sent: see Communicator::all_to_all().
    inbox_ = below.wide() ? arena.device().allocate(bytes) : communicator_.allocate(bytes);
  }

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    gathering_[bucket] = false;
    return communicator_.all_to_all(below_.sent(bucket), received(bucket), stream);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    const Tensor gradients = arena_.bucket_gradients(bucket);
    if (!gathering_[bucket]) {
      Tensor leaves = received(bucket);
      leaves.shape = {communicator_.size(), leaves.size() / communicator_.size()};
      ops_.add_tree(leaves, own_shard(communicator_, gradients), stream);
      gathering_[bucket] = gathers_;
      if (gathers_) return communicator_.all_gather(gradients, stream);
    }
    spans_.end(bucket, stream);
    return GradientSync::advance(bucket, stream, reduced);
  }
  std::size_t bytes() const override { return inbox_.bytes(); }

 private:
  Tensor received(std::size_t bucket) const {
    const Bucket& b = arena_.plan().buckets.at(bucket);
    return inbox_.stretch(sent_type_, b.begin, b.size);
  }

  const ParameterArena& arena_;
  const VirtualRankSums& below_;
  ReductionOps& ops_;
  Communicator& communicator_;
  DType sent_type_;
  bool gathers_;
  std::vector<bool> gathering_;  ///< Per bucket: its shards are being gathered.
  BucketSpans spans_;
  Buffer inbox_;
};

}  // namespace

std::unique_ptr<GradientSync> make_tree_exchange(const ParameterArena& arena, const VirtualRankSums& below) {
  return std::make_unique<TreeExchange>(arena, below);
}

}  // namespace ddptrain
