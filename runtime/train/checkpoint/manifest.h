#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/mesh.h"
#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/train/report/results.h"
#include "runtime/train/step/store/training_state.h"

/// The manifest of a checkpoint: which run wrote it, how far that run had come, and size and hash of every file.

namespace ddptrain {

inline constexpr const char* kManifestName = "manifest.json";

/// What a run is, for the run that resumes it to compare with.
struct RunIdentity {
  std::string model;
  std::map<std::string, std::int64_t> sizes;  ///< Of the model.
  std::string data;                           ///< Size and hash of its content.
  std::string precision;
  std::uint64_t seed = 0;
  std::int64_t batch = 0;
  std::int64_t grad_accum = 1;
  std::int64_t samples_per_step = 0;
  std::int64_t steps_per_epoch = 1;
  MeshShape mesh;
  bool other_tensor = false;                    ///< Earlier steps ran with another number of ranks that split layers.
  std::map<std::string, std::string> flags;     ///< All flags of the program, with their values.
  std::map<std::string, std::string> versions;  ///< Of the program and its libraries.
};

/// How far a run has come. What it keeps besides is in the TrainingState.
struct RunProgress {
  std::int64_t step = 0;
  std::vector<EpochResult> epochs;    ///< Those that have been reported.
  MetricSums epoch_sums;              ///< Of all ranks: what has been logged of the epoch in progress.
  std::vector<MetricSums> rank_sums;  ///< Of each replica, or each virtual rank: what has been added up since.
};

struct CheckpointFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string hash;  ///< XXH3-128
};

struct ArrayInfo {
  std::string name;
  Shape shape;
  std::string dtype;
  Placement placement = Placement::replicated;
};

struct Manifest {
  RunIdentity run;
  RunProgress progress;
  std::vector<ArrayInfo> arrays;
  std::vector<CheckpointFile> files;  ///< In the order of ranks.
  std::string written;                ///< When: UTC, ISO 8601.

  std::uint64_t bytes() const;  ///< Of all files.
};

std::string to_json(const Manifest& manifest);
std::string to_json(const ArrayInfo& array);
ArrayInfo parse_array(std::string_view json);
/// An indented JSON object with its checksum as the last field, in place of one that it has: of all bytes before it.
std::string with_checksum(std::string_view json);
/// UsageError, naming `name`, if `text` is not a manifest of this version, or a byte of it was changed. The texts of a
/// manifest can be printed.
Manifest parse_manifest(std::string_view text, const std::string& name);
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace ddptrain
