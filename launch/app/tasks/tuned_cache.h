#pragma once

#include <filesystem>
#include <string>

#include "runtime/comm/mesh.h"
#include "runtime/comm/world.h"
#include "runtime/device/tuned_choices.h"

namespace ddptrain {

/// Keeps the choices of --tune on between runs (--tune-cache), in a file for each GPU product and its library versions.
/// Only rank 0 reads and writes it. If the file or its folder cannot be used, the log says so and tuning is repeated.
///
/// The stages of a pipeline do different work and wait for each other, so each chooses for itself. The file keeps the
/// choices of a stage with the stage in front of the work. A stage takes these first, then those of runs without
/// stages. Ranks that split layers choose together, but the first of them adds biases in products where the others do
/// not, so the file keeps the work of all.
class TunedCache {
 public:
  /// Loads `choices` from the file, and makes all ranks of a stage choose like the first of them. `folder` may be empty
  /// (the user's default) or "off". `machine` is this rank's GPU and libraries. If ranks have different ones, each
  /// chooses for itself and nothing is kept. `world`, `mesh` and `choices` outlive the cache. Collective.
  TunedCache(const World& world, const Mesh& mesh, TunedChoices& choices, const std::string& folder, TunedFor machine);

  /// Adds the choices since the last call to the file. Other jobs may have changed the file meanwhile. Collective.
  void save();

  const std::filesystem::path& path() const { return path_; }  ///< Empty: this rank keeps nothing.

 private:
  /// What the ranks of all replicas have, from `mine`, if a replica is several ranks. Then it is collective in the job.
  TunedChoices::Map of_all_ranks(const TunedChoices::Map& mine) const;

  const World& world_;
  std::string stage_;  ///< In front of this stage's work in the file. Empty with one stage.
  TunedChoices& choices_;
  TunedFor machine_;
  bool gathers_ = false;  ///< Choices are kept, and a replica is several ranks.
  std::filesystem::path path_;
};

/// $XDG_CACHE_HOME/ddptrain, or ~/.cache/ddptrain. Empty if neither variable is set.
std::filesystem::path default_tune_cache();

/// The GPU of this name and this program's library versions.
TunedFor tuned_for(const std::string& gpu);

}  // namespace ddptrain
