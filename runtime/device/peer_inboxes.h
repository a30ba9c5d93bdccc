#pragma once

#include <array>

namespace ddptrain {

/// Memory in which kernels of all ranks' GPUs exchange gradients.
struct PeerInboxes {
  static constexpr int kMaxRanks = 8;

  int rank = 0;
  int size = 0;
  std::array<void*, kMaxRanks> of_rank = {};  ///< The address of rank r's inbox for this rank's GPU.
};

}  // namespace ddptrain
