#pragma once

#include "runtime/ops/cuda/ptx/mma.cuh"

/// Copies come when they are started or when they are waited for, as products do.

namespace ddptrain::cuda {

inline void start_copy(std::uint32_t to, const void* from, bool inside = true) {
  emulated::Block& block = emulated::Block::current();
  if (to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) block.fail("a copy is not aligned to 16 bytes");
  block.start_work([to = block.shared_memory() + to, from, inside] {
    if (inside) {
      std::memcpy(to, from, 16);
    } else {
      std::memset(to, 0, 16);
    }
  });
}
inline void end_copies() { emulated::Block::current().end_group(); }
template <int kPending>
void await_copies() {
  emulated::Block::current().await_groups(kPending);
}

}  // namespace ddptrain::cuda
