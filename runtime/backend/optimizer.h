#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/backend/step.h"
#include "runtime/core/tensor.h"

namespace ddptrain {

enum class OptimizerKind : std::uint8_t { sgd, adam, adamw, lamb };
enum class ScheduleKind : std::uint8_t { constant, cosine, linear };

/// Learning rate as a function of the step, evaluated where the update runs.
struct LrSchedule {
  ScheduleKind kind = ScheduleKind::constant;
  float peak = 1e-3f;
  std::uint64_t warmup_steps = 0;  ///< Linear from peak / warmup_steps to peak.
  std::uint64_t total_steps = 0;   ///< cosine and linear reach zero after this many.

  DDP_HOST_DEVICE float at(std::uint64_t step) const {
    if (step < warmup_steps) return peak * static_cast<float>(step + 1) / static_cast<float>(warmup_steps);
    if (kind == ScheduleKind::constant || total_steps <= warmup_steps) return peak;
    const float span = static_cast<float>(total_steps - warmup_steps);
    const float done = step >= total_steps ? 1.0f : static_cast<float>(step - warmup_steps) / span;
    if (kind == ScheduleKind::linear) return peak * (1.0f - done);
    return peak * 0.5f * (1.0f + cosf(3.14159265f * done));
  }
};

/// sgd: m = momentum m + g + decay w; w -= lr m.
/// adam (decay added to g) and adamw (decay decoupled): Kingma and Ba 2015 with bias correction; Loshchilov and
/// Hutter 2019. lamb: You et al. 2020, trust ratio |w| / |update| per parameter, 1 where either norm is zero.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::adam;
  LrSchedule schedule;
  float momentum = 0.9f;  ///< sgd only.
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float weight_decay = 0.0f;
};

/// A stretch of one parameter within the arena; at most `kChunkElements` elements, so that one thread block updates it.
struct UpdateChunk {
  std::uint32_t parameter = 0;  ///< Index of the parameter in the arena.
  std::uint32_t begin = 0;      ///< First element, counted from the start of the arena.
  std::uint32_t count = 0;
  std::uint32_t decays = 0;  ///< 1 where weight decay applies.
};
inline constexpr std::uint32_t kChunkElements = 2048;

/// What one optimizer launch updates: the chunks of one bucket (sorted by `begin`, parameters contiguous).
/// All arrays start at the arena's first element. `chunks` lies where the backend computes.
struct UpdateSlice {
  const UpdateChunk* chunks = nullptr;
  std::uint32_t chunk_count = 0;
  std::uint32_t parameter_count = 0;      ///< Parameters in the whole arena (size of norms).
  void* weights = nullptr;                ///< Compute precision; the same pointer as master where the types agree.
  void* master = nullptr;                 ///< master_dtype.
  void* first_moment = nullptr;           ///< master_dtype; momentum for sgd.
  void* second_moment = nullptr;          ///< master_dtype; unused by sgd.
  const void* gradients = nullptr;        ///< Compute precision; already averaged.
  const float* gradient_scale = nullptr;  ///< One factor for every gradient (clipping), or null.
  float* norms = nullptr;                 ///< Scratch for lamb, f32 [2 * arena chunks + 2 * parameter_count].
  std::uint32_t first_chunk = 0;          ///< Index in the arena of this slice's first chunk.
};

}  // namespace ddptrain
