#include "runtime/ops/reduction.h"
#include "runtime/train/step/sync/gradient_sync.h"

namespace ddptrain {
namespace {

class PeerReduction final : public GradientSync {
 public:
  PeerReduction(const ParameterArena& arena, const PeerInboxes& meeting)
      : arena_(arena), ops_(arena.device().get<ReductionOps>()), meeting_(meeting) {}

  bool overlaps_backward() const override { return false; }
  /// All work is done when the last bucket starts, because all gradients of this rank are complete then.
  std::optional<Ticket> start(std::size_t bucket, Stream stream, const Reduced& reduced) override {
    const std::size_t buckets = arena_.plan().buckets.size();
    if (bucket + 1 < buckets) return std::nullopt;
    {
      const Span span(arena_.device().timeline(), Lane::communication, stream, "sum of gradients");
      ops_.meet(meeting_, stream);
      for (std::size_t b = 0; b < buckets; ++b) {
        ops_.add_nodes(arena_.gradient_shards(b), arena_.reduced_gradients(b), stream);
      }
    }
    for (std::size_t b = 0; b < buckets; ++b) reduced(b, stream);
    return std::nullopt;
  }

 private:
  const ParameterArena& arena_;
  ReductionOps& ops_;
  PeerInboxes meeting_;
};

}  // namespace

std::unique_ptr<GradientSync> make_peer_reduction(const ParameterArena& arena, const PeerInboxes& meeting) {
  return std::make_unique<PeerReduction>(arena, meeting);
}

}  // namespace ddptrain
