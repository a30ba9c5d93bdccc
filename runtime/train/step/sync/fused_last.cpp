#include <fmt/format.h>

#include <utility>

#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class FusedLast final : public GradientSync {
 public:
  FusedLast(const ParameterArena& arena, SumAndUpdate sum_and_update)
      : arena_(arena),
        sum_and_update_(std::move(sum_and_update)),
        last_(arena.plan().buckets.size() - 1),
        others_(make_all_reduce(arena)) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    if (bucket < last_) return others_->start(bucket, stream, reduced);
    const Span span(arena_.device().timeline(), Lane::communication, stream,
                    fmt::format("bucket {} sum and update", bucket));
    sum_and_update_(bucket, stream);
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
  SumAndUpdate sum_and_update_;
  std::size_t last_;
  std::unique_ptr<GradientSync> others_;
};

}  // namespace

std::unique_ptr<GradientSync> make_fused_last(const ParameterArena& arena, SumAndUpdate sum_and_update) {
  return std::make_unique<FusedLast>(arena, std::move(sum_and_update));
}

}  // namespace ddptrain
