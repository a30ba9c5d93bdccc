#include <fmt/format.h>

#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class FusedLast final : public GradientSync {
 public:
  FusedLast(const ParameterArena& arena, Device& device, Communicator& communicator, Optimizer& optimizer,
            const PeerInboxes& inboxes)
      : arena_(arena),
        device_(device),
        communicator_(communicator),
        optimizer_(optimizer),
        last_(arena.plan().buckets.size() - 1),
        others_(make_all_reduce(arena, device, communicator)),
        inboxes_(inboxes) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    if (bucket < last_) return others_->start(bucket, stream, reduced);
    const Span span(device_.timeline(), Lane::communication, stream, fmt::format("bucket {} sum and update", bucket));
    optimizer_.sum_and_update(bucket, inboxes_, stream);
    return std::nullopt;
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    return others_->advance(bucket, stream, reduced);
  }
  /// The kernel leaves the gradients of the last bucket as they are.
  void complete_sums() override {
    communicator_.wait(communicator_.all_reduce_sum(arena_.bucket_gradients(last_), device_.compute_stream()));
  }

 private:
  const ParameterArena& arena_;
  Device& device_;
  Communicator& communicator_;
  Optimizer& optimizer_;
  std::size_t last_;
  std::unique_ptr<GradientSync> others_;
  PeerInboxes inboxes_;
};

}  // namespace

std::unique_ptr<GradientSync> make_fused_last(const ParameterArena& arena, Device& device, Communicator& communicator,
                                              Optimizer& optimizer, const PeerInboxes& inboxes) {
  return std::make_unique<FusedLast>(arena, device, communicator, optimizer, inboxes);
}

}  // namespace ddptrain
