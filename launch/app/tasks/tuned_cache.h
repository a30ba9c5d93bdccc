#pragma once

#include <filesystem>
#include <string>

#include "runtime/comm/world.h"
#include "runtime/device/tuned_choices.h"

namespace ddptrain {

/// Keeps the choices of --tune on in a file between runs (--tune-cache): one file for each GPU product and the versions
/// of its libraries. Rank 0 alone reads and writes it. What is wrong with the file or its folder costs one line of the
/// log, and tuning is done again.
class TunedCache {
 public:
  /// `folder`: empty for the user's default, or "off". `machine`: what choices hold for on this rank. Gives `choices`
  /// what the file holds, and has all ranks choose as rank 0 does. Ranks on different machines each choose for
  /// themselves, and nothing is kept. Collective; `world` and `choices` outlive this.
  TunedCache(const World& world, TunedChoices& choices, const std::string& folder, TunedFor machine);

  /// Adds what has been chosen since the last call to the file, which other jobs may have changed meanwhile.
  void save();

  const std::filesystem::path& path() const { return path_; }  ///< Empty: nothing is kept by this rank.

 private:
  const World& world_;
  TunedChoices& choices_;
  TunedFor machine_;
  std::filesystem::path path_;
};

/// $XDG_CACHE_HOME/ddptrain, or ~/.cache/ddptrain; empty where neither is set.
std::filesystem::path default_tune_cache();

/// What choices of this program hold for on the GPU of this name.
TunedFor tuned_for(const std::string& gpu);

}  // namespace ddptrain
