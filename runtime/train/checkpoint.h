#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/safetensors.h"
#include "runtime/device/device.h"
#include "runtime/train/manifest.h"
#include "runtime/train/training_state.h"

/// Checkpoints on disk: in FOLDER/step-N/, a file rank-R.safetensors of each rank and manifest.json, which is written
/// last. A folder without a manifest is not a checkpoint.

namespace ddptrain {

struct Checkpoint {
  std::filesystem::path path;
  Manifest manifest;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);
/// All, complete or not, by step; empty where the folder is missing.
std::map<std::int64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
bool has_manifest(const std::filesystem::path& checkpoint);
/// What is wrong with a checkpoint, in words; empty: nothing. Of its files, looks at every `readers`-th.
std::string fault_of(const std::filesystem::path& checkpoint, int reader = 0, int readers = 1);

/// Removes all but the newest `keep` complete checkpoints up to `step`, and incomplete ones before it.
void remove_old_checkpoints(const std::filesystem::path& folder, std::int64_t step, std::int64_t keep);

/// `path`: a checkpoint, or a folder of them, of which the newest that is complete and undamaged is taken; the others
/// are named in the log. Nothing where the folder has none. UsageError where the one checkpoint that `path` names is
/// damaged, or a rank does not see it. The ranks divide the reading. Collective.
std::optional<Checkpoint> find_checkpoint(const World& world, const std::filesystem::path& path);

/// What rank `rank` of `ranks` writes of `arrays`: its own pieces; of replicated arrays an equal part.
std::vector<StateArray> arrays_to_write(std::vector<StateArray> arrays, int rank, int ranks);
/// Under which name a piece is in a file: the array's, with [begin:end] where the piece is not all of it.
std::string piece_name(const StateArray& array, const StateArray::Piece& piece);
StoredType stored_type(DType dtype);

/// The values of a checkpoint. Maps its files.
class CheckpointReader {
 public:
  explicit CheckpointReader(const Checkpoint& checkpoint);

  /// Elements [begin, begin + count) of an array, as they are stored; of an array that each rank has of its own, that
  /// of rank `rank`, or of rank `rank` modulo the number of ranks that wrote. Error where some are missing.
  void read(const std::string& array, std::int64_t begin, std::int64_t count, int rank,
            const std::function<void(std::int64_t at, const std::uint8_t* data, std::size_t bytes)>& take) const;
  /// The f32 values of every parameter: master weights where there are some, else weights.
  std::map<std::string, std::pair<Shape, std::vector<float>>> parameters() const;

 private:
  struct Stored {
    int rank;
    std::int64_t begin;
    std::int64_t count;
    const std::uint8_t* data;
    std::size_t element_bytes;
  };

  const Manifest& manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<Stored>> stored_;
  std::map<std::string, const ArrayInfo*> arrays_;
};

/// Copies the arrays of a checkpoint into `state`, whose buckets and number of ranks may be other ones. UsageError
/// where arrays are missing, unknown, or of another shape or type. Collective; whoever owns the model tells it.
void restore_arrays(const Checkpoint& checkpoint, const TrainingState& state, const World& world, Device& device);
/// What rank `rank` of `ranks` had added up, in `count` sums, one of each of its virtual ranks; where the numbers do
/// not go with those of the checkpoint, the first sum of rank 0 has what all had.
std::vector<MetricSums> restored_sums(const RunProgress& progress, int rank, int ranks, std::size_t count = 1);

}  // namespace ddptrain
