#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/mesh_shape.h"
#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/train/results/steps.h"
#include "runtime/train/step/store/training_state.h"

/// The manifest of a checkpoint: the run that wrote it, the run's progress, and size and hash of every file.

namespace ddptrain {

inline constexpr const char* kManifestName = "manifest.json";

/// Properties of a run. A run that resumes it compares them with its own.
struct RunIdentity {
  std::string model;
  std::map<std::string, std::int64_t> sizes;  ///< The model's sizes by name.
  /// Ids of tokens by what they mean. Not compared.
  std::map<std::string, std::vector<std::uint32_t>> special_tokens = {};
  std::string data;  ///< Size and hash of the data.
  std::string precision;
  std::uint64_t seed = 0;
  std::int64_t batch = 0;
  std::int64_t grad_accum = 1;
  std::int64_t samples_per_step = 0;
  std::int64_t steps_per_epoch = 1;
  MeshShape mesh;
  bool other_tensor = false;                    ///< Earlier steps ran with another --tp.
  std::map<std::string, std::string> flags;     ///< All flags of the program, with their values.
  std::map<std::string, std::string> versions;  ///< Versions of the program and its libraries.
};

/// Whether earlier steps of a run that continues `saved` ran with another --tp than `now`.
bool had_other_tensor(const RunIdentity& saved, const RunIdentity& now);

/// The progress of a run. The TrainingState has the rest of what a resume needs.
struct RunProgress {
  std::int64_t step = 0;
  std::vector<EpochResult> epochs;  ///< Epochs that have been reported.
  /// Part of the current epoch that is not in rank_sums, over all ranks: what an older version had logged.
  MetricSums epoch_sums;
  std::vector<MetricSums> rank_sums;  ///< The rest of it, for each replica or each virtual rank.
  MetricSums logged_sums = {};        ///< The total of rank_sums at the last logged step before this checkpoint's.
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
  std::string written;                ///< Time of writing: UTC, ISO 8601.

  std::uint64_t bytes() const;  ///< The size of all files together.
};

std::string to_json(const Manifest& manifest);
std::string to_json(const ArrayInfo& array);
ArrayInfo parse_array(std::string_view json);
/// Indents a JSON object and sets its last field, the checksum of all bytes before it.
std::string with_checksum(std::string_view json);
/// UsageError, naming `name`, if `text` is not a manifest of this version or one of its bytes has changed. The texts in
/// the result contain no control characters.
Manifest parse_manifest(std::string_view text, const std::string& name);
Manifest read_manifest(const std::filesystem::path& checkpoint);

}  // namespace ddptrain
