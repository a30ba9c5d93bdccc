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
#include "runtime/train/replica/trainer.h"
#include "runtime/train/results/checkpoints.h"

namespace ddptrain {

struct CheckpointOptions {
  std::string folder;            ///< Empty: no checkpoints.
  std::int64_t every_steps = 0;  ///< 0: not by steps.
  double every_seconds = 0.0;    ///< 0: not by time.
  std::int64_t keep = 2;         ///< Number of complete checkpoints to keep.
  bool stop_on_error = true;     ///< Stop the run if a checkpoint cannot be written. Otherwise continue without it.
};

/// Writes checkpoints while training continues. It copies the state into pinned host memory, and a thread writes that
/// to disk. Older checkpoints are removed only after fault_of_layout() has found the new one complete. The host memory
/// has the size of this rank's share of the state and is allocated once.
class CheckpointWriter {
 public:
  /// `more`: arrays of this rank besides the training state. Trainer, world and the memory of these arrays outlive the
  /// writer. Collective.
  CheckpointWriter(CheckpointOptions options, RunIdentity run, const Trainer& trainer, const World& world,
                   std::vector<StateArray> more = {});
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const CheckpointOptions& options() const { return options_; }
  bool busy() const { return phase_ != Phase::idle; }  ///< The same on all ranks.

  /// Copies the state after all steps queued so far and starts to write it. Returns when the next steps may be queued.
  /// The result is empty unless the checkpoint has failed already. Error while busy(). Collective.
  std::optional<WrittenCheckpoint> start(RunProgress progress);
  /// Returns the checkpoint that has ended since the last call, if any. Does not wait for the disk. Collective.
  std::optional<WrittenCheckpoint> poll();
  /// Waits for the checkpoint that is being written, and returns it.
  std::optional<WrittenCheckpoint> wait();

 private:
  /// The place of a piece of the state in the file.
  struct Place {
    Tensor values;
    std::size_t at;
  };
  enum class Phase : std::uint8_t { idle, writing, publishing };

  std::vector<StateArray> all_arrays() const;
  /// The names of this stage's arrays, on the first rank of the stage; empty on the others.
  std::vector<std::string> own_arrays() const;
  void lay_out();
  bool enough_space() const;
  std::string write_file() const;  ///< Returns the CheckpointFile or an error, as JSON.
  std::string publish(Manifest manifest);
  std::optional<WrittenCheckpoint> advance();
  std::optional<WrittenCheckpoint> finish(std::string error);

  CheckpointOptions options_;
  RunIdentity run_;
  const Trainer& trainer_;
  const World& world_;
  const std::vector<StateArray> more_;
  Device& device_;
  std::vector<Place> places_;
  std::string file_name_;
  Buffer image_;  ///< The content of this rank's file.
  std::size_t image_bytes_ = 0;
  double total_bytes_ = 0.0;  ///< The sum over all ranks.

  Phase phase_ = Phase::idle;
  RunProgress progress_;
  std::vector<MetricSums> sums_;  ///< This rank's metric sums.
  WrittenCheckpoint current_;
  double started_ = 0.0;
  std::map<std::int64_t, bool> undamaged_;  ///< By step: whether a checkpoint that this writer has checked is good.
  std::future<std::string> work_;
};

}  // namespace ddptrain
