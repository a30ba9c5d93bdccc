#include "runtime/train/step/sync/gradient_sync.h"

#include <fmt/format.h>

#include <utility>

namespace ddptrain {
namespace {

class NoSync final : public GradientSync {
 public:
  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    reduced(bucket, stream);
    return std::nullopt;
  }
};

class Folded final : public GradientSync {
 public:
  Folded(VirtualRankSums& below, std::unique_ptr<GradientSync> inner) : below_(below), inner_(std::move(inner)) {}

  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    below_.fold(bucket, stream);
    return inner_->start(bucket, stream, reduced);
  }
  std::optional<Ticket> advance(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    return inner_->advance(bucket, stream, reduced);
  }
  void complete_sums() override { inner_->complete_sums(); }
  std::size_t bytes() const override { return inner_->bytes(); }

 private:
  VirtualRankSums& below_;
  std::unique_ptr<GradientSync> inner_;
};

}  // namespace

std::optional<GradientSync::Ticket> GradientSync::advance(std::size_t bucket, Stream stream, const Reduced& reduced) {
  reduced(bucket, stream);
  return std::nullopt;
}

std::unique_ptr<GradientSync> make_no_sync() { return std::make_unique<NoSync>(); }

std::unique_ptr<GradientSync> make_folded(VirtualRankSums& below, std::unique_ptr<GradientSync> inner) {
  return std::make_unique<Folded>(below, std::move(inner));
}

void BucketSpans::begin(std::size_t bucket, Stream stream) {
  Timeline* timeline = device_.timeline();
  if (timeline == nullptr) return;
  spans_[bucket] = timeline->begin(Lane::communication, stream, fmt::format("bucket {} gradients", bucket));
}

void BucketSpans::end(std::size_t bucket, Stream stream) {
  if (Timeline* timeline = device_.timeline()) timeline->end(spans_[bucket], stream);
}

}  // namespace ddptrain
