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

/// Checkpoints on disk. FOLDER/step-N/ has a file rank-R.safetensors of each rank, and manifest.json, which is written
/// last. A folder without a manifest is not a complete checkpoint.

namespace ddptrain {

struct Checkpoint {
  std::filesystem::path path;
  Manifest manifest;
};

std::filesystem::path checkpoint_path(const std::filesystem::path& folder, std::int64_t step);
std::string arrays_file_name(int rank);  ///< Relative to the checkpoint's folder.
/// All checkpoints by step, also incomplete ones. Empty if the folder is missing. UsageError if it cannot be read.
std::map<std::int64_t, std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);
/// Whether the checkpoint has a manifest. True if the folder cannot be read, because it may have one.
bool has_manifest(const std::filesystem::path& checkpoint);
/// Describes what is wrong with a checkpoint's layout; empty if nothing is. Reads the manifest, the size and header of
/// every file, and the array `step`.
std::string fault_of_layout(const std::filesystem::path& checkpoint);
/// Describes what is wrong with the content of files `reader`, `reader` + `readers` and so on; empty if nothing is.
std::string fault_of_files(const std::filesystem::path& checkpoint, int reader = 0, int readers = 1);
/// Checks the content of all files, then the layout.
std::string fault_of(const std::filesystem::path& checkpoint);

/// Removes the files that runs write. Returns a description of what went wrong; empty if nothing did. If the process
/// dies in the middle, no checkpoint with a manifest and missing files is left. Other files, a folder that has some,
/// and links to folders stay.
std::string remove_checkpoint(const std::filesystem::path& checkpoint);
/// Removes incomplete checkpoints, and all but the newest `keep` undamaged ones up to `step`. Warns if that fails.
/// `undamaged` says by step which checkpoints are known to be good. Others are read once and added to it.
void remove_old_checkpoints(const std::filesystem::path& folder, std::int64_t step, std::int64_t keep,
                            std::map<std::int64_t, bool>& undamaged);

/// Finds a checkpoint. `path` is a checkpoint, or a folder of checkpoints; then the newest complete and undamaged one
/// is taken, and the log names the newer ones that are not. Nothing if the folder has no complete one. UsageError, with
/// each checkpoint's fault, if all complete ones are damaged or unreadable for some rank. The ranks share the reading.
/// Collective.
std::optional<Checkpoint> find_checkpoint(const World& world, const std::filesystem::path& path);

/// The pieces that rank `rank` of `ranks` writes: its own pieces, and an equal part of each replicated array.
std::vector<StateArray> arrays_to_write(std::vector<StateArray> arrays, int rank, int ranks);
/// The name of a piece in a file: the array's name. If the piece is not the whole array, [begin:end] follows. For a
/// piece of a Split, [begin:end:first:run:stride] follows; `begin` and `end` then count elements of the split.
std::string piece_name(const StateArray& array, const StateArray::Piece& piece);
StoredType stored_type(DType dtype);

/// Reads the values of a checkpoint. Maps its files.
class CheckpointReader {
 public:
  /// UsageError if sizes or headers of the files do not fit the manifest. The content is not checked.
  explicit CheckpointReader(const Checkpoint& checkpoint);

  /// Calls `take` with elements [begin, begin + count) of an array, in stored form. If each rank had an array of its
  /// own, it reads the array of rank `rank` modulo the number of ranks that wrote. Error if elements are missing.
  void read(const std::string& array, std::int64_t begin, std::int64_t count, int rank,
            const std::function<void(std::int64_t at, const std::uint8_t* data, std::size_t bytes)>& take) const;
  /// The values of every parameter: its master weights if there are any, otherwise its weights.
  std::map<std::string, std::pair<Shape, std::vector<float>>> parameters() const;

 private:
  struct Stored {
    int rank;
    Split slice;         ///< The slice of the array that the writing rank had.
    std::int64_t begin;  ///< Index of the first element in that slice.
    std::int64_t count;
    const std::uint8_t* data;
    std::size_t element_bytes;
  };

  const Manifest& manifest_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, std::vector<Stored>> stored_;
  std::map<std::string, const ArrayInfo*> arrays_;
};

/// Copies the arrays of a checkpoint into `state`. Buckets and number of ranks may differ from the run that wrote it.
/// An array of bf16 also becomes one of f32, and a weight of bf16 also becomes a master weight that is missing.
/// UsageError if arrays are missing or have another shape or type. `whole`: the state has the whole model; then unknown
/// arrays are a UsageError, too. Call Trainer::restored() afterwards. Collective.
void restore_arrays(const Checkpoint& checkpoint, const TrainingState& state, const World& world, Device& device,
                    bool whole = true);
/// The metric sums of rank `rank` of `ranks`: `count` sums, one for each of its virtual ranks. If these numbers differ
/// from the run that wrote the checkpoint, the first sum of rank 0 is the total, and the others are zero.
std::vector<MetricSums> restored_sums(const RunProgress& progress, int rank, int ranks, std::size_t count = 1);

}  // namespace ddptrain
