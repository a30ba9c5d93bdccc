#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/buffer.h"
#include "runtime/device/device.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/step/trainer.h"

namespace ddptrain {

struct CheckpointOptions {
  std::string folder;            ///< Empty: none are written.
  std::int64_t every_steps = 0;  ///< 0: not by steps.
  double every_seconds = 0.0;    ///< 0: not by time.
  std::int64_t keep = 2;         ///< Complete checkpoints that stay.
  bool stop_on_error = true;     ///< Where one cannot be written, else go on without it.
};

/// What has become of a checkpoint; the same on all ranks.
struct WrittenCheckpoint {
  std::int64_t step = 0;
  std::string path;
  std::uint64_t bytes = 0;     ///< Of all ranks.
  double pause_seconds = 0.0;  ///< For which the slowest rank stood still.
  double write_seconds = 0.0;  ///< Beside training, from then on.
  std::string error;           ///< Empty: it is complete.
};

/// Writes checkpoints while training goes on: copies the state into pinned host memory, from where a thread writes it.
/// A checkpoint is complete when fault_of_layout() has found nothing; only then are older ones removed.
/// Host memory for it is taken once, at the start: this rank's share of the state.
class CheckpointWriter {
 public:
  /// All but options and run outlive the writer. Collective.
  CheckpointWriter(CheckpointOptions options, RunIdentity run, const Trainer& trainer, const World& world);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const CheckpointOptions& options() const { return options_; }
  bool busy() const { return phase_ != Phase::idle; }  ///< The same on all ranks.

  /// Copies the state as the steps queued so far leave it, and starts to write it; returns when the next steps may be
  /// queued. Error where it is busy. Returns a checkpoint that has failed at once. Collective.
  std::optional<WrittenCheckpoint> start(RunProgress progress);
  /// The checkpoint that has been finished, or has failed, since the last call. Does not wait for the disk. Collective.
  std::optional<WrittenCheckpoint> poll();
  /// The same of the one that is being written; waits for it.
  std::optional<WrittenCheckpoint> wait();

 private:
  /// Where a piece of the state lies in the file.
  struct Place {
    Tensor values;
    std::size_t at;
  };
  enum class Phase : std::uint8_t { idle, writing, publishing };

  /// The arrays of this stage, on the first of its ranks.
  std::vector<std::string> own_arrays() const;
  void lay_out();
  bool enough_space() const;
  std::string write_file() const;  ///< Its CheckpointFile, or an error, as JSON.
  std::string publish(Manifest manifest);
  std::optional<WrittenCheckpoint> advance();
  std::optional<WrittenCheckpoint> finish(std::string error);

  CheckpointOptions options_;
  RunIdentity run_;
  const Trainer& trainer_;
  const World& world_;
  Device& device_;
  std::vector<Place> places_;
  std::string file_name_;
  Buffer image_;  ///< The file of this rank.
  std::size_t image_bytes_ = 0;
  double total_bytes_ = 0.0;  ///< Of all ranks.

  Phase phase_ = Phase::idle;
  RunProgress progress_;
  std::vector<MetricSums> sums_;  ///< Of this rank.
  WrittenCheckpoint current_;
  double started_ = 0.0;
  std::map<std::int64_t, bool> undamaged_;  ///< By step: those that this writer wrote or has checked.
  std::future<std::string> work_;
};

}  // namespace ddptrain
