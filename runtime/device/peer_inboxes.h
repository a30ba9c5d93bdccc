#pragma once

#include <array>

namespace ddptrain {

/// Memory through which the GPUs of all ranks hand each other gradients from within a kernel.
struct PeerInboxes {
  static constexpr int kMaxRanks = 8;

  int rank = 0;
  int size = 0;
  std::array<void*, kMaxRanks> of_rank = {};  ///< Rank r's inbox, as this rank's GPU reaches it.
};

}  // namespace ddptrain
