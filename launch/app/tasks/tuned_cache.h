#pragma once

#include <filesystem>
#include <string>

#include "runtime/comm/world.h"
#include "runtime/device/tuned_choices.h"

namespace ddptrain {

/// Keeps the choices of --tune on between runs (--tune-cache), in a file for each GPU product and its library versions.
/// Only rank 0 reads and writes it. If the file or its folder cannot be used, the log says so and tuning is repeated.
class TunedCache {
 public:
  /// Loads `choices` from the file, and makes all ranks choose like rank 0. `folder` may be empty (the user's default)
  /// or "off". `machine` is this rank's GPU and libraries. If ranks have different ones, each chooses for itself and
  /// nothing is kept. `world` and `choices` outlive the cache. Collective.
  TunedCache(const World& world, TunedChoices& choices, const std::string& folder, TunedFor machine);

  /// Adds the choices since the last call to the file. Other jobs may have changed the file meanwhile.
  void save();

  const std::filesystem::path& path() const { return path_; }  ///< Empty: this rank keeps nothing.

 private:
  const World& world_;
  TunedChoices& choices_;
  TunedFor machine_;
  std::filesystem::path path_;
};

/// $XDG_CACHE_HOME/ddptrain, or ~/.cache/ddptrain. Empty if neither variable is set.
std::filesystem::path default_tune_cache();

/// The GPU of this name and this program's library versions.
TunedFor tuned_for(const std::string& gpu);

}  // namespace ddptrain
