#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

using Start = Communicator::Ticket (Communicator::*)(const Tensor&, Stream);

/// One collective per bucket. `starts` begins it.
class OneCollective final : public GradientSync {
 public:
  OneCollective(const ParameterArena& arena, Start starts, bool overlaps_next_forward)
      : arena_(arena), starts_(starts), overlaps_next_forward_(overlaps_next_forward), spans_(arena) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced&) override {
    spans_.begin(bucket, stream);
    return (arena_.communicator().*starts_)(arena_.bucket_gradients(bucket), stream);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    spans_.end(bucket, stream);
    return GradientSync::advance(bucket, stream, reduced);
  }
  bool overlaps_next_forward() const override { return overlaps_next_forward_; }

 private:
  const ParameterArena& arena_;
  Start starts_;
  bool overlaps_next_forward_;
  BucketSpans spans_;
};

}  // namespace

std::unique_ptr<GradientSync> make_all_reduce(const ParameterArena& arena) {
  return std::make_unique<OneCollective>(arena, Start(&Communicator::all_reduce_sum), true);
}

std::unique_ptr<GradientSync> make_reduce_scatter(const ParameterArena& arena) {
  return std::make_unique<OneCollective>(arena, Start(&Communicator::reduce_scatter_sum), false);
}

}  // namespace ddptrain
