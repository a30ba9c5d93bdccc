#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/nonfinite.h"
#include "runtime/core/random.h"

/// Numbers that change from step to step. They live where the device computes, so that a captured step can be replayed
/// without new arguments: position in the data, learning rate and dropout all follow from the step number.

namespace ddptrain {

/// Sums over the predictions made since they were last zeroed: one per image, one per token.
struct MetricSums {
  double loss = 0.0;  ///< Sum of the predictions' losses (natural logarithm).
  std::uint64_t correct = 0;
  std::uint64_t samples = 0;

  double mean_loss() const { return loss / static_cast<double>(samples); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
  MetricSums operator+(const MetricSums& other) const {
    return {loss + other.loss, correct + other.correct, samples + other.samples};
  }
  MetricSums operator-(const MetricSums& other) const {
    return {loss - other.loss, correct - other.correct, samples - other.samples};
  }
};

/// Values of each `every`th step, which the device leaves in host memory: the host reads them without waiting. Step
/// number `done`, counted from 1, has a slot; a later logged step takes it again.
struct StepLog {
  std::uint32_t every = 0;  ///< 0: no step is logged.
  std::uint32_t slots = 0;
  std::uint32_t ranks = 0;               ///< Virtual ranks of this rank.
  const MetricSums* training = nullptr;  ///< [ranks] The sums that are logged.
  MetricSums* sums = nullptr;            ///< [slots, ranks] Their values when the step ended.
  double* norms = nullptr;               ///< [slots] Norm of the whole gradient before clipping.
  std::uint64_t* nanoseconds = nullptr;  ///< [slots] When the step ended, by the device's clock; then start().
  std::uint64_t newest_nanoseconds = 0;  ///< When the newest step ended, or start().
  std::uint64_t paused_nanoseconds = 0;  ///< Time that no step takes. Logged times leave it out.

  DDP_HOST_DEVICE bool logs(std::uint64_t done) const { return every > 0 && done % every == 0; }
  DDP_HOST_DEVICE std::uint32_t slot(std::uint64_t done) const {
    return static_cast<std::uint32_t>(done / every % slots);
  }
  /// Call it when *changed has got the last value of a micro-step. Sums that are not logged are left out.
  DDP_HOST_DEVICE void note_sums(std::uint64_t done, const MetricSums* changed) const {
    if (!logs(done) || changed < training || changed >= training + ranks) return;
    sums[slot(done) * ranks + static_cast<std::uint32_t>(changed - training)] = *changed;
  }
  DDP_HOST_DEVICE void note_norm(std::uint64_t done, double norm) const {
    if (logs(done)) norms[slot(done)] = norm;
  }
  /// The steps after number `before` up to `done` have ended. They take the same time each.
  DDP_HOST_DEVICE void note_time(std::uint64_t before, std::uint64_t done, std::uint64_t now) {
    for (std::uint64_t step = (before / every + 1) * every; step <= done; step += every) {
      const std::uint64_t passed = (now - newest_nanoseconds) * (step - before) / (done - before);
      nanoseconds[slot(step)] = newest_nanoseconds + passed - paused_nanoseconds;
    }
    newest_nanoseconds = now;
  }
  DDP_HOST_DEVICE void start(std::uint64_t now) {
    newest_nanoseconds = now;
    nanoseconds[slots] = now - paused_nanoseconds;
  }
  /// The time since the newest step was a pause.
  DDP_HOST_DEVICE void end_pause(std::uint64_t now) {
    paused_nanoseconds += now - newest_nanoseconds;
    newest_nanoseconds = now;
  }
};

struct StepState {
  std::uint64_t step = 0;  ///< Number of optimizer steps finished so far.
  NonFinite nonfinite = {};
  StepLog log = {};  ///< Not a part of the training state.
};
inline constexpr std::size_t kTrainingStateBytes = offsetof(StepState, log);

/// A step number read where the work runs: `state->step + offset`. `offset` counts steps within one captured graph.
struct StepRef {
  const StepState* state = nullptr;
  std::uint32_t offset = 0;

  DDP_HOST_DEVICE std::uint64_t value() const { return state->step + offset; }
  /// See StepLog. Batches that are not trained on need no state.
  DDP_HOST_DEVICE void note_sums(const MetricSums* changed) const {
    if (state != nullptr) state->log.note_sums(value() + 1, changed);
  }
};

/// Which samples a batch holds. Training: step s of the run takes the positions
/// [(s mod steps_per_epoch) * samples_per_step, + samples_per_step) of the epoch's permutation, the same on any number
/// of ranks; this batch is the slice of them that starts at `first`. Evaluation (`shuffle` false): the samples
/// first, first + 1, ... of the file.
struct SampleOrder {
  std::uint64_t seed = 0;
  std::uint32_t dataset_size = 0;
  std::uint32_t steps_per_epoch = 1;
  std::uint32_t samples_per_step = 0;  ///< Over all ranks and micro-steps.
  std::uint32_t first = 0;
  bool shuffle = true;
};

namespace detail {

DDP_HOST_DEVICE std::uint32_t mix(std::uint32_t x) {  // finaliser of MurmurHash3
  x ^= x >> 16;
  x *= 0x85EBCA6Bu;
  x ^= x >> 13;
  x *= 0xC2B2AE35u;
  return x ^ (x >> 16);
}

}  // namespace detail

/// Bijection of [0, size): a six-round Feistel network on the smallest even number of bits that holds `size`, walked
/// until it lands inside (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Needs no table,
/// so every rank and every thread finds its own sample.
struct Permutation {
  std::uint32_t key;
  std::uint32_t size;
  std::uint32_t half_bits;

  DDP_HOST_DEVICE Permutation(std::uint64_t seed, std::uint32_t epoch, std::uint32_t size)
      : key(detail::mix(static_cast<std::uint32_t>(seed) ^ detail::mix(epoch + 0x9E3779B9u)) ^
            detail::mix(static_cast<std::uint32_t>(seed >> 32) + 0x7F4A7C15u)),
        size(size),
        half_bits(1) {
    while (half_bits < 16 && (1ull << (2 * half_bits)) < size) ++half_bits;
  }

  DDP_HOST_DEVICE std::uint32_t operator()(std::uint32_t position) const {
    const std::uint32_t mask = (1u << half_bits) - 1;
    std::uint32_t x = position;
    do {
      std::uint32_t left = x >> half_bits;
      std::uint32_t right = x & mask;
      for (std::uint32_t round = 0; round < 6; ++round) {
        const std::uint32_t next = left ^ (detail::mix(right + key + round * 0x9E3779B9u) & mask);
        left = right;
        right = next;
      }
      x = (left << half_bits) | right;
    } while (x >= size);
    return x;
  }
};

/// The rows of one batch: what `order` means at one step, worked out once.
struct BatchRows {
  Permutation permutation;
  std::uint32_t first;
  bool shuffle;

  DDP_HOST_DEVICE BatchRows(const SampleOrder& order, StepRef step)
      : BatchRows(order, order.shuffle ? step.value() : 0) {}
  DDP_HOST_DEVICE BatchRows(const SampleOrder& order, std::uint64_t step)
      : permutation(order.seed, static_cast<std::uint32_t>(step / order.steps_per_epoch), order.dataset_size),
        first(order.first +
              (order.shuffle ? static_cast<std::uint32_t>(step % order.steps_per_epoch) * order.samples_per_step : 0)),
        shuffle(order.shuffle) {}

  /// Index in the data set of row `row`.
  DDP_HOST_DEVICE std::uint32_t operator[](std::uint32_t row) const {
    return shuffle ? permutation(first + row) : first + row;
  }
};

/// Index in the data set of row `row` of a batch.
DDP_HOST_DEVICE std::uint32_t sample_index(const SampleOrder& order, std::uint64_t step, std::uint32_t row) {
  return BatchRows(order, step)[row];
}

/// The samples of one micro-step of a rank: `count` samples of a data set, found through `order`. The model
/// knows what a sample is.
struct Slice {
  SampleOrder order;
  StepRef step;
  std::int64_t count = 0;
};

/// Dropout of rate `rate`: feature f of the sample at position `order.first + row` of the global batch is dropped where
/// its 15 random bits (see dropout_slot; Philox of kRounds, counter {call, position, step, site}, key seed) are below
/// rate * 32768, and multiplied by 1 / (1 - rate) elsewhere. So masks depend on the sample and the step, not on ranks
/// or schedules.
struct Dropout {
  static constexpr int kRounds = 7;

  float rate = 0.0f;  ///< 0 in evaluation.
  std::uint64_t seed = 0;
  std::uint32_t site = 0;      ///< Distinguishes the dropout layers of a model.
  std::uint32_t position = 0;  ///< Position of row 0 in the global batch.
  StepRef step;
  std::uint32_t first = 0;  ///< The feature of its sample with which row 0 begins.

  DDP_HOST_DEVICE std::uint32_t threshold() const { return static_cast<std::uint32_t>(rate * 32768.0f + 0.5f); }
  DDP_HOST_DEVICE float scale() const { return 1.0f / (1.0f - rate); }
  DDP_HOST_DEVICE Philox draw(std::uint32_t call, std::uint32_t row) const {
    const std::uint64_t now = step.value();
    return philox<kRounds>(call, position + row, static_cast<std::uint32_t>(now),
                           site ^ (static_cast<std::uint32_t>(now >> 32) << 8), seed);
  }
  DDP_HOST_DEVICE bool keeps(std::uint32_t feature, std::uint32_t row) const {
    if (rate <= 0.0f) return true;
    const DropoutSlot slot = dropout_slot(first + feature);
    return random_bits(draw(slot.call, row), slot.lane) >= threshold();
  }
};

}  // namespace ddptrain
