#pragma once

namespace ddptrain::cuda {

/// A stage of a ring of buffers in shared memory, and the parity of its barriers' phase (ptx/bulk_copy.cuh).
template <int kStages>
struct Turn {
  int stage = 0;
  int parity = 0;

  __device__ __forceinline__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

}  // namespace ddptrain::cuda
