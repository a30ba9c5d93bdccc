#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class AllReduce final : public GradientSync {
 public:
  AllReduce(const ParameterArena& arena, Device& device, Communicator& communicator)
      : arena_(arena), communicator_(communicator), spans_(device, arena.plan().buckets.size()) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    return communicator_.all_reduce_sum(arena_.bucket_gradients(bucket), stream);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    spans_.end(bucket, stream);
    return GradientSync::advance(bucket, stream, reduced);
  }
  bool may_outlast_step() const override { return true; }

 private:
  const ParameterArena& arena_;
  Communicator& communicator_;
  BucketSpans spans_;
};

}  // namespace

std::unique_ptr<GradientSync> make_all_reduce(const ParameterArena& arena, Device& device, Communicator& communicator) {
  return std::make_unique<AllReduce>(arena, device, communicator);
}

}  // namespace ddptrain
