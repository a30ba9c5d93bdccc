#include "runtime/train/step/store/weight_store.h"

#include "runtime/ops/reduction.h"

namespace ddptrain {
namespace {

class ReplicatedWeights final : public WeightStore {
 public:
  explicit ReplicatedWeights(Communicator* working_ranks) : working_ranks_(working_ranks) {}

  Communicator* working_ranks() override { return working_ranks_; }

 private:
  Communicator* working_ranks_;
};

class GatheredWeights final : public WeightStore {
 public:
  explicit GatheredWeights(const ParameterArena& arena)
      : arena_(arena), device_(arena.device()), communicator_(arena.communicator()) {}

  void updated(std::size_t bucket, Stream stream) override {
    const Stream communication = device_.communication_stream();
    if (stream.handle != communication.handle) device_.wait_for(communication, stream);
    newest_ = communicator_.all_gather(arena_.bucket_weights(bucket), communication);
  }
  Communicator* shard_ranks() override { return &communicator_; }
  Communicator* working_ranks() override { return &communicator_; }
  void finish() override {
    communicator_.wait(newest_);
    device_.wait_for(device_.compute_stream(), device_.communication_stream());
  }

 private:
  const ParameterArena& arena_;
  Device& device_;
  Communicator& communicator_;
  Communicator::Ticket newest_ = 0;
};

class PeerWeights final : public WeightStore {
 public:
  PeerWeights(const ParameterArena& arena, const PeerInboxes& meeting)
      : arena_(arena), ops_(arena.device().get<ReductionOps>()), meeting_(meeting) {}

  void add_copies(UpdateSlice& slice, std::size_t bucket) const override {
    slice.peer_weights = arena_.peer_weights(bucket);
  }
  bool update_sends() const override { return true; }
  Communicator* shard_ranks() override { return &arena_.communicator(); }
  void finish() override { ops_.meet(meeting_, arena_.device().compute_stream()); }

 private:
  const ParameterArena& arena_;
  ReductionOps& ops_;
  PeerInboxes meeting_;
};

}  // namespace

std::unique_ptr<WeightStore> make_replicated_weights(Communicator* working_ranks) {
  return std::make_unique<ReplicatedWeights>(working_ranks);
}

std::unique_ptr<WeightStore> make_gathered_weights(const ParameterArena& arena) {
  return std::make_unique<GatheredWeights>(arena);
}

std::unique_ptr<WeightStore> make_peer_weights(const ParameterArena& arena, const PeerInboxes& meeting) {
  return std::make_unique<PeerWeights>(arena, meeting);
}

}  // namespace ddptrain
