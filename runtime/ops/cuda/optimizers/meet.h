#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/device/peer_inboxes.h"

namespace ddptrain::cuda {

/// Of an inbox of meet(): the newest round of each sender, then this rank's.
inline constexpr std::size_t kMeetingBytes = (PeerInboxes::kMaxRanks + 1) * sizeof(std::uint32_t);

/// As OptimizerOps::meet().
void meet(const PeerInboxes& peers, cudaStream_t stream);

}  // namespace ddptrain::cuda
