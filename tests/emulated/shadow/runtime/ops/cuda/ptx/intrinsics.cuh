#pragma once

#include "tests/emulated/device.h"

namespace ddptrain::cuda {

inline float exp2_approximate(float x) { return std::exp2(x); }
inline void prefetch_to_l2(const void*, std::uint32_t) {}
inline void prefetch_to_l2(const void*) {}
inline uint4 load_once(const uint4* from) { return *from; }

inline void add_to_global(float4* sum, float4 x) {
  sum->x += x.x;
  sum->y += x.y;
  sum->z += x.z;
  sum->w += x.w;
}

}  // namespace ddptrain::cuda
