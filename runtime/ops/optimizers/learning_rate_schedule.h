#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain {

enum class LrScheduleKind : std::uint8_t { constant, cosine, linear };

/// The learning rate as a function of the step, evaluated where the update runs.
struct LrSchedule {
  LrScheduleKind kind = LrScheduleKind::constant;
  float peak = 1e-3f;
  std::uint64_t warmup_steps = 0;  ///< Linear from peak / warmup_steps to peak.
  std::uint64_t total_steps = 0;   ///< cosine and linear reach zero after this many.

  DDP_HOST_DEVICE float at(std::uint64_t step) const {
    if (step < warmup_steps) return peak * static_cast<float>(step + 1) / static_cast<float>(warmup_steps);
    if (kind == LrScheduleKind::constant || total_steps <= warmup_steps) return peak;
    const float span = static_cast<float>(total_steps - warmup_steps);
    const float done = step >= total_steps ? 1.0f : static_cast<float>(step - warmup_steps) / span;
    switch (kind) {
      case LrScheduleKind::linear:
        return peak * (1.0f - done);
      case LrScheduleKind::constant:  // above
      case LrScheduleKind::cosine:
        break;
    }
    return peak * 0.5f * (1.0f + cosf(3.14159265f * done));
  }
};

}  // namespace ddptrain
