#pragma once

#include <cstdint>
#include <cstring>

#include "runtime/core/random.h"
#include "runtime/core/step.h"

/// Rounding to bf16 at random: to one of the two neighbours of a value, with the probabilities that make the value the
/// mean (stochastic rounding). An update that is smaller than half of the distance between two bf16 numbers then counts
/// on average. Rounding to the nearest number would lose it in every step. CPUs and GPUs run the same code.

namespace ddptrain {

/// The parameter whose elements are rounded. Random bits depend on it, the element's index in the whole parameter, the
/// step and a seed, and on nothing else: neither on ranks, nor on what they divide.
struct RoundedParameter {
  std::uint32_t identity = 0;  ///< ParameterSpec::identity()
  /// This rank's slice of the parameter, as in Split. `run` 0: it has the whole parameter.
  std::uint32_t run = 0;
  std::uint64_t first = 0;
  std::uint64_t stride = 0;

  /// The low 32 bits of the index in the whole parameter of an element of the slice. Parameters of 2^32 elements and
  /// more have the upper bits mixed in.
  DDP_HOST_DEVICE std::uint32_t element(std::uint32_t in_slice) const {
    if (run == 0) return in_slice;
    const std::uint64_t whole = first + in_slice / run * stride + in_slice % run;
    return static_cast<std::uint32_t>(whole) + static_cast<std::uint32_t>(whole >> 32) * 0x9E3779B9u;
  }
};

/// The random bits of a parameter in one step.
struct RoundingBits {
  /// 16 bits for each value that an element keeps.
  struct OfElement {
    std::uint32_t weight;
    std::uint32_t first_moment;
    std::uint32_t second_moment;
  };

  std::uint32_t key[2];

  DDP_HOST_DEVICE RoundingBits(std::uint64_t seed, std::uint64_t step, std::uint32_t identity) {
    constexpr std::uint32_t kRounding = 0x524F554E;  // last counter word; see kInitialValues
    const Philox random =
        philox<7>(identity, static_cast<std::uint32_t>(step), static_cast<std::uint32_t>(step >> 32), kRounding, seed);
    key[0] = random.word[0];
    key[1] = random.word[1];
  }
  DDP_HOST_DEVICE OfElement of(std::uint32_t element) const {
    const std::uint32_t a = detail::mix(element ^ key[0]);
    const std::uint32_t b = detail::mix(a + key[1]);
    return {b >> 16, a & 0xFFFFu, a >> 16};
  }
};

/// `value` rounded to one of its two neighbours in bf16, away from zero if its cut-off bits and 16 random bits have a
/// sum of 2^16 and more. Values of bf16, infinities and NaN stay what they are. The largest finite values may become
/// infinite, as in rounding to nearest.
DDP_HOST_DEVICE float round_at_random(float value, std::uint32_t bits16) {
#if defined(__CUDA_ARCH__)
  const std::uint32_t bits = __float_as_uint(value);
#else
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
#endif
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return value;
  const std::uint32_t rounded = (bits + bits16) & 0xFFFF0000u;
#if defined(__CUDA_ARCH__)
  return __uint_as_float(rounded);
#else
  float result = 0.0f;
  std::memcpy(&result, &rounded, sizeof(result));
  return result;
#endif
}

}  // namespace ddptrain
