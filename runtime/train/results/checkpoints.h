#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

namespace ddptrain {

/// The outcome of a checkpoint; the same on all ranks.
struct WrittenCheckpoint {
  std::int64_t step = 0;
  std::string path;
  std::uint64_t bytes = 0;     ///< The sum over all ranks.
  double pause_seconds = 0.0;  ///< How long training paused on the slowest rank.
  double write_seconds = 0.0;  ///< How long writing took after that, overlapped with training.
  std::string error;           ///< Empty: the checkpoint is complete.
};

struct CheckpointTotals {
  std::int64_t written = 0;
  std::int64_t failed = 0;
  std::string error;                 ///< Why the last one failed; empty if it was written.
  std::uint64_t bytes = 0;           ///< The size of one checkpoint.
  double pause_seconds = 0.0;        ///< The longest pause of training.
  double pause_seconds_total = 0.0;  ///< All together.
  double write_seconds = 0.0;        ///< The longest write, while training goes on.

  void add(const WrittenCheckpoint& checkpoint) {
    ++(checkpoint.error.empty() ? written : failed);
    error = checkpoint.error;
    bytes = checkpoint.bytes;
    pause_seconds = std::max(pause_seconds, checkpoint.pause_seconds);
    pause_seconds_total += checkpoint.pause_seconds;
    write_seconds = std::max(write_seconds, checkpoint.write_seconds);
  }
};

}  // namespace ddptrain
