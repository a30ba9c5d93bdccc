#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

using Start = Communicator::Ticket (Communicator::*)(const Tensor&, Stream);

/// One collective per bucket, which `starts` begins.
class OneCollective final : public GradientSync {
 public:
  OneCollective(const ParameterArena& arena, Device& device, Communicator& communicator, Start starts, bool outlasts)
      : arena_(arena),
        communicator_(communicator),
        starts_(starts),
        outlasts_(outlasts),
        spans_(device, arena.plan().buckets.size()) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    return (communicator_.*starts_)(arena_.bucket_gradients(bucket), stream);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    spans_.end(bucket, stream);
    return GradientSync::advance(bucket, stream, reduced);
  }
  bool may_outlast_step() const override { return outlasts_; }

 private:
  const ParameterArena& arena_;
  Communicator& communicator_;
  Start starts_;
  bool outlasts_;
  BucketSpans spans_;
};

}  // namespace

std::unique_ptr<GradientSync> make_all_reduce(const ParameterArena& arena, Device& device, Communicator& communicator) {
  return std::make_unique<OneCollective>(arena, device, communicator, Start(&Communicator::all_reduce_sum), true);
}

std::unique_ptr<GradientSync> make_reduce_scatter(const ParameterArena& arena, Device& device,
                                                  Communicator& communicator) {
  return std::make_unique<OneCollective>(arena, device, communicator, Start(&Communicator::reduce_scatter_sum), false);
}

}  // namespace ddptrain
