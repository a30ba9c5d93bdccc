#include <bit>
#include <memory>

#include "runtime/core/error.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

/// The common part of both classes below. They reduce the gradients of a bucket in every pass, into memory for this
/// rank's shard. Then other buckets may use the gradients' place.
class ShardedSync : public GradientSync {
 public:
  bool sums_every_pass() const override { return true; }

  /// Drops the events of the step before: later work runs after them anyway.
  void begin_pass(std::int64_t pass, bool last) override {
    if (pass == 0) read_ = std::vector<std::unique_ptr<Event>>(read_.size());
    pass_ = pass;
    last_ = last;
  }
  void claim(std::size_t bucket) override {
    const auto& read = read_[arena_.gradient_places().place[bucket]];
    if (read) device_.wait_until(device_.compute_stream(), *read);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    add(bucket, stream);
    read_[arena_.gradient_places().place[bucket]] = device_.mark(stream);
    spans_.end(bucket, stream);
    if (last_) reduced(bucket, stream);
    return std::nullopt;
  }

 protected:
  explicit ShardedSync(const ParameterArena& arena)
      : arena_(arena),
        device_(arena.device()),
        ops_(device_.get<ReductionOps>()),
        communicator_(arena.communicator()),
        spans_(arena),
        read_(arena.plan().buckets.size()) {}

  /// Adds the sum over ranks to the sum of earlier passes.
  virtual void add(std::size_t bucket, Stream stream) = 0;

  const ParameterArena& arena_;
  Device& device_;
  ReductionOps& ops_;
  Communicator& communicator_;
  BucketSpans spans_;
  std::int64_t pass_ = 0;
  bool last_ = false;

 private:
  std::vector<std::unique_ptr<Event>> read_;  ///< Per place: the end of the last read of its gradients.
};

class ShardedSums final : public ShardedSync {
 public:
  explicit ShardedSums(const ParameterArena& arena) : ShardedSync(arena) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    return communicator_.reduce_scatter_sum(arena_.bucket_gradients(bucket), stream);
  }

 private:
  void add(std::size_t bucket, Stream stream) override {
    const Tensor sum = own_shard(communicator_, arena_.bucket_gradients(bucket));
    const Tensor all = arena_.reduced_gradients(bucket);
    if (pass_ == 0) {
      device_.copy(all.data, sum.data, sum.bytes(), stream);
      return;
    }
    ops_.add_nodes({sum, all}, all, stream);
  }
};

class ShardedTree final : public ShardedSync {
 public:
  ShardedTree(const ParameterArena& arena, std::int64_t passes)
      : ShardedSync(arena), sum_type_(master_dtype(device_.precision())) {
    const auto ranks = static_cast<std::uint64_t>(communicator_.size());
    DDP_CHECK(std::has_single_bit(ranks) && std::has_single_bit(static_cast<std::uint64_t>(passes)),
              "a tree of {} passes on {} ranks", passes, ranks);
    const Shape shard = {arena.plan().size / communicator_.size()};
    const int depth = std::countr_zero(static_cast<std::uint64_t>(passes));
    for (int i = 0; i < depth; ++i) levels_.push_back(device_.allocate(sum_type_, shard));
    if (depth > 0) node_ = device_.allocate(sum_type_, shard);
    // From the same allocator as the memory that is sent: see Communicator::all_to_all().
    inbox_ =
        communicator_.allocate(static_cast<std::size_t>(arena.gradient_places().size) * size_of(arena.gradient_type()));
  }

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    return communicator_.all_to_all(arena_.bucket_gradients(bucket), received(bucket), stream);
  }
  std::size_t bytes() const override { return inbox_.bytes() + node_.bytes() + total_bytes(levels_); }

 private:
  /// A pass completes as many levels of the tree as its number has trailing ones.
  void add(std::size_t bucket, Stream stream) override {
    Tensor leaves = received(bucket);
    leaves.shape = {communicator_.size(), leaves.size() / communicator_.size()};
    const auto complete = static_cast<std::size_t>(std::countr_one(static_cast<std::uint64_t>(pass_)));
    const Tensor sum = last_ ? arena_.reduced_gradients(bucket) : arena_.shard_in(levels_[complete], sum_type_, bucket);
    if (complete == 0) {
      ops_.add_tree(leaves, sum, stream);
      return;
    }
    std::vector<Tensor> nodes = {arena_.shard_in(node_, sum_type_, bucket)};
    ops_.add_tree(leaves, nodes[0], stream);
    for (std::size_t k = 0; k < complete; ++k) nodes.push_back(arena_.shard_in(levels_[k], sum_type_, bucket));
    ops_.add_nodes(nodes, sum, stream);
  }
  Tensor received(std::size_t bucket) const {
    const Tensor sent = arena_.bucket_gradients(bucket);
    return inbox_.stretch(sent.dtype, arena_.gradient_places().begin[bucket], sent.size());
  }

  DType sum_type_;
  std::vector<Buffer> levels_;  ///< [i]: the sum of 2^i passes, kept until the next 2^i are complete.
  Buffer node_;
  Buffer inbox_;
};

}  // namespace

std::unique_ptr<GradientSync> make_sharded_sums(const ParameterArena& arena) {
  return std::make_unique<ShardedSums>(arena);
}

std::unique_ptr<GradientSync> make_sharded_tree(const ParameterArena& arena, std::int64_t passes) {
  return std::make_unique<ShardedTree>(arena, passes);
}

}  // namespace ddptrain
