#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/core/clocked.h"
#include "runtime/train/step/store/weight_store.h"

namespace ddptrain {
namespace {

/// A place keeps the weights of the last bucket that was gathered into it until weights change.
class ShardedWeights final : public WeightStore {
 public:
  ShardedWeights(const ParameterArena& arena, Device& device, Communicator& communicator)
      : arena_(arena), device_(device), communicator_(communicator), gathered_(arena.plan().buckets.size()) {
    for (const Unit& unit : arena.units()) {
      buckets_.push_back(buckets_of(arena.plan(), unit));
      for (const std::size_t parameter : unit.also_reads) {
        buckets_.back().push_back(arena.plan().bucket_of.at(parameter));
      }
    }
    changed();
  }

  void changed() override { holds_.assign(gathered_.size(), std::nullopt); }
  void acquire(std::size_t unit, std::optional<std::size_t> next) override {
    for (const std::size_t bucket : buckets_.at(unit)) gather(bucket);
    if (next) {
      for (const std::size_t bucket : buckets_.at(*next)) gather(bucket);
    }
    for (const std::size_t bucket : buckets_[unit]) wait_for(bucket);
  }
  Communicator* shard_ranks() override { return &communicator_; }
  void finish() override { changed(); }
  double seconds_waited() const override { return seconds_waited_; }

 private:
  struct Gathered {
    Communicator::Ticket ticket = 0;
    bool pending = false;          ///< The compute stream does not wait for it yet.
    std::unique_ptr<Event> event;  ///< The end of the gather, once it is queued.
    std::size_t span = 0;
  };

  /// Starts after all earlier work on the compute stream, which may use the bucket's place.
  void gather(std::size_t bucket) {
    std::optional<std::size_t>& held = holds_[arena_.weight_places().place[bucket]];
    if (held == bucket) return;
    held = bucket;
    const Stream stream = device_.communication_stream();
    device_.wait_for(stream, device_.compute_stream());
    Gathered& gathered = gathered_[bucket];
    if (Timeline* timeline = device_.timeline()) {
      gathered.span = timeline->begin(Lane::communication, stream, fmt::format("bucket {} weights", bucket));
    }
    gathered.ticket = communicator_.all_gather(arena_.own_weights(bucket), arena_.bucket_weights(bucket), stream);
    gathered.pending = true;
    if (communicator_.test(gathered.ticket)) mark_end(gathered);
  }
  /// Called when the last operation of the gather is queued.
  void mark_end(Gathered& gathered) {
    const Stream stream = device_.communication_stream();
    if (Timeline* timeline = device_.timeline()) timeline->end(gathered.span, stream);
    gathered.event = device_.mark(stream);
  }
  void wait_for(std::size_t bucket) {
    Gathered& gathered = gathered_[bucket];
    if (!gathered.pending) return;
    if (!gathered.event) {
      const Watch::Wait wait(device_.watch(), "all-gather");
      const Span span(device_.timeline(), Lane::compute, device_.compute_stream(),
                      fmt::format("wait for bucket {}", bucket));
      const Clocked clocked(seconds_waited_);
      while (!communicator_.test(gathered.ticket)) std::this_thread::yield();
      mark_end(gathered);
    }
    gathered.pending = false;
    device_.wait_until(device_.compute_stream(), *std::exchange(gathered.event, nullptr));
  }

  const ParameterArena& arena_;
  Device& device_;
  Communicator& communicator_;
  std::vector<std::vector<std::size_t>> buckets_;  ///< Per unit: the buckets that it reads.
  std::vector<std::optional<std::size_t>> holds_;  ///< Per place: the bucket whose weights it has.
  std::vector<Gathered> gathered_;                 ///< Per bucket.
  double seconds_waited_ = 0.0;
};

}  // namespace

std::unique_ptr<WeightStore> make_sharded_weights(const ParameterArena& arena, Device& device,
                                                  Communicator& communicator) {
  return std::make_unique<ShardedWeights>(arena, device, communicator);
}

}  // namespace ddptrain
