#pragma once

#include <algorithm>
#include <cstdlib>

#include "runtime/device/device.h"

namespace ddptrain {

/// DDPTRAIN_TEST_RANKS: the ranks of tests on GPUs, which share the GPUs (tests/gpu/run); 0: each rank has its own.
inline int ranks_that_share_gpus() {
  const char* text = std::getenv("DDPTRAIN_TEST_RANKS");
  return text != nullptr ? std::atoi(text) : 0;
}

inline bool has_gpus_for(int ranks) {
  const int gpus = cuda_device_count();
  return gpus >= ranks || (gpus > 0 && ranks_that_share_gpus() > 0);
}

/// Ranks that share a GPU, if there are `ranks` of them.
inline int ranks_per_gpu(int ranks) {
  const int gpus = std::max(cuda_device_count(), 1);
  return std::max(1, (ranks + gpus - 1) / gpus);
}

inline int gpu_of(int local_rank) { return local_rank % std::max(cuda_device_count(), 1); }

/// Ranks that a test starts on this machine's GPUs, at most `most` if each has its own.
inline int gpu_ranks(int most) {
  if (cuda_device_count() == 0) return 0;
  return ranks_that_share_gpus() > 0 ? ranks_that_share_gpus() : std::min(cuda_device_count(), most);
}

/// The programs' flag for it.
inline const char* share_gpu_flag() { return ranks_that_share_gpus() > 0 ? " --share-gpu " : ""; }

}  // namespace ddptrain
