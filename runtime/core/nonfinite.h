#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/core/random.h"

/// Steps that cannot be taken, because a loss or a gradient is NaN or infinite, are noticed where the update runs, so
/// that the host need not look at every step. A loss that is not finite makes its gradient NaN (runtime/ops/loss.h),
/// and the sum over ranks carries both to every rank, in the same step.

namespace ddptrain {

/// Values that are not finite, as the device has seen them; part of the training state. A gradient counts as not finite
/// if its square is not finite.
struct NonFinite {
  static constexpr std::uint32_t kMostInARow = 10;  ///< After as many steps left out in a row, none is taken any more.
  static constexpr int kParameterBits = 20;
  static constexpr std::uint32_t kNoParameter = (1u << kParameterBits) - 1;

  std::uint64_t first = 0;     ///< 0: none; else place() of the first since the host has last looked.
  std::uint64_t left_out = 0;  ///< Steps that were not taken. Without a norm of the gradient all are taken.
  std::uint64_t in_a_row = 0;  ///< The newest of them, with none in between that was taken.

  /// Number of a step (from 0) and a parameter. A greater number is earlier: by the step, then by the parameter.
  DDP_HOST_DEVICE static std::uint64_t place(std::uint64_t step, std::uint32_t parameter) {
    return ~(step << kParameterBits | (parameter < kNoParameter ? parameter : kNoParameter));
  }
  std::uint64_t first_step() const { return ~first >> kParameterBits; }
  /// kNoParameter if no gradient was found that is not finite, only the norm of all.
  std::uint32_t first_parameter() const { return static_cast<std::uint32_t>(~first) & kNoParameter; }
  DDP_HOST_DEVICE bool ended() const { return in_a_row >= kMostInARow; }
};

/// The factor of a step's gradients, whose squares add up to `squares`: such that their norm is at most `max_norm` (0:
/// any), or NaN if the step is not to be taken, which `found` keeps.
DDP_HOST_DEVICE float step_scale(double squares, float max_norm, std::uint64_t step, NonFinite& found) {
  const auto norm = static_cast<float>(sqrt(squares));
  constexpr float kLargest = 3.402823466e+38f;
  if (found.ended()) return NAN;
  if (norm <= kLargest) {  // false for NaN
    found.in_a_row = 0;
    const float scale = max_norm / (norm + 1e-6f);
    return max_norm > 0.0f && scale < 1.0f ? scale : 1.0f;
  }
  const std::uint64_t place = NonFinite::place(step, NonFinite::kNoParameter);
  if (found.first < place) found.first = place;
  ++found.left_out;
  ++found.in_a_row;
  return NAN;
}

}  // namespace ddptrain
