#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class ReduceScatter final : public GradientSync {
 public:
  ReduceScatter(const ParameterArena& arena, Device& device, Communicator& communicator)
      : arena_(arena), communicator_(communicator), spans_(device, arena.plan().buckets.size()) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    return communicator_.reduce_scatter_sum(arena_.bucket_gradients(bucket), stream);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    spans_.end(bucket, stream);
    return GradientSync::advance(bucket, stream, reduced);
  }

 private:
  const ParameterArena& arena_;
  Communicator& communicator_;
  BucketSpans spans_;
};

}  // namespace

std::unique_ptr<GradientSync> make_reduce_scatter(const ParameterArena& arena, Device& device,
                                                  Communicator& communicator) {
  return std::make_unique<ReduceScatter>(arena, device, communicator);
}

}  // namespace ddptrain
