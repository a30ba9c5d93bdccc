#include "runtime/train/step/sync/gradient_sync.h"

#include <fmt/format.h>

namespace ddptrain {
namespace {

class NoSync final : public GradientSync {
 public:
  bool overlaps_backward() const override { return false; }
  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    reduced(bucket, stream);
    return std::nullopt;
  }
};

}  // namespace

std::optional<GradientSync::Ticket> GradientSync::advance(std::size_t bucket, Stream stream, const Reduced& reduced) {
  reduced(bucket, stream);
  return std::nullopt;
}

std::unique_ptr<GradientSync> make_no_sync() { return std::make_unique<NoSync>(); }

void BucketSpans::begin(std::size_t bucket, Stream stream) {
  Timeline* timeline = device_.timeline();
  if (timeline == nullptr) return;
  spans_[bucket] = timeline->begin(Lane::communication, stream, fmt::format("bucket {} gradients", bucket));
}

void BucketSpans::end(std::size_t bucket, Stream stream) {
  if (Timeline* timeline = device_.timeline()) timeline->end(spans_[bucket], stream);
}

}  // namespace ddptrain
