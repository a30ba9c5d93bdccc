#pragma once

#include <bit>
#include <cstdint>

#include "runtime/core/random.h"

namespace ddptrain {

/// A bfloat16 in host memory: the upper half of an f32.
struct Bf16 {
  std::uint16_t bits;
};

inline float to_float(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16); }

/// Rounds to the nearest bf16, ties to even; a NaN stays one.
inline Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

/// Bits of an f32 rounded to a bf16, away from zero with the probability that makes the mean exact, by the low 16 bits
/// of `random`. The result is an f32 again. Infinities and NaNs do not change.
DDP_HOST_DEVICE std::uint32_t stochastic_bf16(std::uint32_t bits, std::uint32_t random) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (bits | 0x00400000u) & 0xFFFF0000u;
  return (bits + (random & 0xFFFFu)) & 0xFFFF0000u;
}

}  // namespace ddptrain
