#include <fmt/format.h>

#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class FusedLast final : public GradientSync {
 public:
  FusedLast(const ParameterArena& arena, Optimizer& optimizer, const PeerInboxes& inboxes)
      : arena_(arena),
        optimizer_(optimizer),
        last_(arena.plan().buckets.size() - 1),
        others_(make_all_reduce(arena)),
        inboxes_(inboxes) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    if (bucket < last_) return others_->start(bucket, stream, reduced);
    const Span span(arena_.device().timeline(), Lane::communication, stream,
                    fmt::format("bucket {} sum and update", bucket));
    optimizer_.sum_and_update(bucket, inboxes_, stream);
    return std::nullopt;
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    return others_->advance(bucket, stream, reduced);
  }
  /// The fused kernel does not change the gradients of the last bucket, so they are reduced here.
  void complete_sums() override {
    Communicator& ranks = arena_.communicator();
    ranks.wait(ranks.all_reduce_sum(arena_.bucket_gradients(last_), arena_.device().compute_stream()));
  }

 private:
  const ParameterArena& arena_;
  Optimizer& optimizer_;
  std::size_t last_;
  std::unique_ptr<GradientSync> others_;
  PeerInboxes inboxes_;
};

}  // namespace

std::unique_ptr<GradientSync> make_fused_last(const ParameterArena& arena, Optimizer& optimizer,
                                              const PeerInboxes& inboxes) {
  return std::make_unique<FusedLast>(arena, optimizer, inboxes);
}

}  // namespace ddptrain
