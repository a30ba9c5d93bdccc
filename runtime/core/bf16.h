#pragma once

#include <bit>
#include <cstdint>

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

}  // namespace ddptrain
