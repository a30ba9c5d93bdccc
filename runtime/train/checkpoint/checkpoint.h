#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/core/files/safetensors.h"
#include "runtime/device/device.h"
#include "runtime/train/checkpoint/manifest.h"
#include "runtime/train/step/store/training_state.h"

/// Checkpoints on disk: in FOLDER/step-N/, a file rank-R.safetensors of each rank and manifest.json, which is written
/// last. A folder without a manifest is not a checkpoint.

namespace ddptrain {

struct Checkpoint {
  std::filesystem::path path;
  Manifest manifest;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);
std::string arrays_file_name(int rank);  ///< Within a checkpoint.
/// All, complete or not, by step; empty if the folder is missing. UsageError if it cannot be read.
std::map<std::int64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
/// Whether the checkpoint may be complete: also if the folder cannot be read.
bool has_manifest(const std::filesystem::path& checkpoint);
/// What is wrong with a checkpoint, in words; empty: nothing. Reads the manifest, size and header of every file, and
/// the array `step`.
std::string fault_of_layout(const std::filesystem::path& checkpoint);
/// The same for the content of every `readers`-th file, from number `reader` on.
std::string fault_of_files(const std::filesystem::path& checkpoint, int reader = 0, int readers = 1);
/// Both: first the content of all files, then the layout.
std::string fault_of(const std::filesystem::path& checkpoint);

/// Removes what runs have written, and returns what went wrong, in words; empty: nothing. Whatever moment it ends at,
/// no complete checkpoint with missing files is left. Other files stay, and the folder with them; a link to a folder
/// stays.
std::string remove_checkpoint(const std::filesystem::path& checkpoint);
/// Removes all before the newest `keep` undamaged ones, up to `step`, and incomplete ones. Warns if that fails.
/// `undamaged`: what is known, by step; a checkpoint that is not in it is read once and added.
void remove_old_checkpoints(const std::filesystem::path& folder, std::int64_t step, std::int64_t keep,
                            std::map<std::int64_t, bool>& undamaged);

/// `path`: a checkpoint, or a folder of them, of which the newest that is complete and undamaged is taken; the others
/// are named in the log. Nothing where the folder has no complete one. UsageError, with each and its fault, if it has
/// some and none is undamaged, or a rank sees none so. The ranks divide the reading. Collective.
std::optional<Checkpoint> find_checkpoint(const World& world, const std::filesystem::path& path);

/// What rank `rank` of `ranks` writes of `arrays`: its own pieces; of replicated arrays an equal part.
std::vector<StateArray> arrays_to_write(std::vector<StateArray> arrays, int rank, int ranks);
/// Under which name a piece is in a file: the array's, with [begin:end] where the piece is not all of it, and
/// [begin:end:first:run:stride] where it is of a Split, whose elements `begin` and `end` count.
std::string piece_name(const StateArray& array, const StateArray::Piece& piece);
StoredType stored_type(DType dtype);

/// The values of a checkpoint. Maps its files.
class CheckpointReader {
 public:
  /// UsageError where the files are not those of the manifest: by their sizes and headers, not by their content.
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
    Split part;          ///< Of the array,
    std::int64_t begin;  ///< of which it has elements from this one on.
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
/// where arrays are missing, or of another shape or type; where the state is that of a whole model, also where some are
/// unknown. Collective; whoever owns the model tells it.
void restore_arrays(const Checkpoint& checkpoint, const TrainingState& state, const World& world, Device& device,
                    bool whole = true);
/// What rank `rank` of `ranks` had added up, in `count` sums, one of each of its virtual ranks; where the numbers do
/// not go with those of the checkpoint, the first sum of rank 0 has what all had.
std::vector<MetricSums> restored_sums(const RunProgress& progress, int rank, int ranks, std::size_t count = 1);

}  // namespace ddptrain
