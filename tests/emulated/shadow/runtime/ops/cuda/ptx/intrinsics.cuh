#pragma once

#include "tests/emulated/device.h"

namespace ddptrain::cuda {

inline float exp2_approximate(float x) { return std::exp2(x); }
inline void prefetch_to_l2(const void*, std::uint32_t) {}
inline void prefetch_to_l2(const void*) {}
inline void check_alignment(const void* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    emulated::Block::current().fail("16 bytes of global memory are not aligned");
  }
}
inline uint4 load_once(const uint4* from) {
  check_alignment(from);
  return *from;
}
inline void store_at_once(uint4* to, const uint4& x) {
  check_alignment(to);
  std::memcpy(to, &x, sizeof(x));
}
enum class CachePolicy : std::uint64_t { normal, evict_first };
inline uint4 load_evict_first(const uint4* from) { return load_once(from); }
inline void store_evict_first_if(bool condition, uint4* to, const uint4& x) {
  if (condition) store_at_once(to, x);
}

inline void add_to_global(float4* sum, float4 x) {
  sum->x += x.x;
  sum->y += x.y;
  sum->z += x.z;
  sum->w += x.w;
}

}  // namespace ddptrain::cuda
