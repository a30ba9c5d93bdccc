#pragma once

#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/core/bf16.h"
#include "runtime/ops/cpu/optimizer.h"

/// What the files of rules share. Each specialises Step and instantiates Rule.

namespace ddptrain::cpu {

template <class T>
T number(T value) {
  return value;
}
template <class T>
T number(Bf16 value) {
  return to_float(value);
}

/// The settings of one step as factors, the master arrays as T, the gradients as G.
template <class T, class G>
struct Update {
  T learning_rate, momentum, beta1, beta2, epsilon, decay, gradient_scale;
  T correction1, correction2;  ///< 1 / (1 - beta^t)
  T* master;
  std::array<T*, kMostOptimizerSlots> state;
  const G* gradients;

  Update(const OptimizerSettings& s, const UpdateSlice& slice, std::uint64_t step)
      : learning_rate(static_cast<T>(s.schedule.at(step))),
        momentum(static_cast<T>(s.momentum)),
        beta1(static_cast<T>(s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        epsilon(static_cast<T>(s.epsilon)),
        decay(static_cast<T>(s.weight_decay)),
        gradient_scale(slice.gradient_scale != nullptr ? static_cast<T>(*slice.gradient_scale) : T{1}),
        correction1(correction(s.beta1, step)),
        correction2(correction(s.beta2, step)),
        master(static_cast<T*>(slice.master)),
        gradients(static_cast<const G*>(slice.gradients)) {
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<T*>(slice.state[i]);
  }

  static T correction(float beta, std::uint64_t step) {
    return static_cast<T>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step + 1))));
  }
  T decay_of(const UpdateChunk& chunk) const { return chunk.decays != 0 ? decay : T{0}; }
};

/// Notes the parameter where the square of one of its gradients in `chunk` is not finite.
template <class T, class G>
void note_nonfinite(const Update<T, G>& u, const UpdateChunk& chunk, NonFinite& found, std::uint64_t step) {
  bool finite = true;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = number<T>(u.gradients[chunk.begin + i]);
    finite &= gradient * gradient <= std::numeric_limits<T>::max();
  }
  if (finite) return;
  const std::uint64_t place = NonFinite::place(step, chunk.parameter);
  std::atomic_ref<std::uint64_t> first(found.first);
  for (std::uint64_t noted = first; noted < place && !first.compare_exchange_weak(noted, place);) {
  }
}

/// static void run(const Update<T, G>&, const UpdateChunk& chunk), or, for rules of whole parameters,
/// run(const Update<T, G>&, const UpdateChunk* chunks, std::uint32_t count) on all chunks of one.
template <OptimizerKind kKind>
struct Step;

/// Index of the first chunk of every parameter in the slice, and the end.
inline std::vector<std::uint32_t> parameter_bounds(const UpdateSlice& slice) {
  std::vector<std::uint32_t> bounds;
  for (std::uint32_t i = 0; i < slice.chunk_count; ++i) {
    if (i == 0 || slice.chunks[i].parameter != slice.chunks[i - 1].parameter) bounds.push_back(i);
  }
  bounds.push_back(slice.chunk_count);
  return bounds;
}

template <OptimizerKind kKind, class T, class G>
void update_as(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step,
               const Parallel& parallel) {
  const Update<T, G> u(settings, slice, step);
  if (slice.nonfinite != nullptr) {
    parallel(slice.chunk_count, 64,
             [&](std::int64_t i) { note_nonfinite(u, slice.chunks[i], *slice.nonfinite, step); });
  }
  if (std::isnan(u.gradient_scale)) return;
  if constexpr (rule_of(kKind).whole_parameters) {
    const std::vector<std::uint32_t> bounds = parameter_bounds(slice);
    parallel(static_cast<std::int64_t>(bounds.size()) - 1, 1, [&](std::int64_t i) {
      const std::uint32_t begin = bounds[static_cast<std::size_t>(i)];
      Step<kKind>::run(u, slice.chunks + begin, bounds[static_cast<std::size_t>(i) + 1] - begin);
    });
  } else {
    parallel(slice.chunk_count, 64, [&](std::int64_t i) { Step<kKind>::run(u, slice.chunks[i]); });
  }
}

template <OptimizerKind kKind>
void Rule<kKind>::update(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step, DType master,
                         const Parallel& parallel) {
  const bool bf16 = slice.gradient_type == DType::bf16;
  if (master == DType::f64) {
    const auto update = bf16 ? update_as<kKind, double, Bf16> : update_as<kKind, double, double>;
    return update(settings, slice, step, parallel);
  }
  const auto update = bf16 ? update_as<kKind, float, Bf16> : update_as<kKind, float, float>;
  update(settings, slice, step, parallel);
}

}  // namespace ddptrain::cpu
