#pragma once

#include <cstdint>

/// Copies from global to shared memory, 16 bytes each, that a thread starts and goes on (PTX cp.async, compute
/// capability 8.0 and newer; elsewhere the thread waits for each).

namespace ddptrain::cuda {

/// `to`: an address in shared memory. Both addresses are multiples of 16. Writes zeros where not `inside`.
__device__ __forceinline__ void start_copy(std::uint32_t to, const void* from, bool inside = true) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
#else
  const uint4 data = inside ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(data.x), "r"(data.y), "r"(data.z), "r"(data.w)
               : "memory");
#endif
}

/// The copies since the last call become a group.
__device__ __forceinline__ void end_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

/// Until at most `kPending` of this thread's last groups are under way.
template <int kPending>
__device__ __forceinline__ void await_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

}  // namespace ddptrain::cuda
