#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <utility>

#include "runtime/core/bf16.h"
#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/optimizer_rules.h"

namespace ddptrain {

namespace {

/// The master arrays as T, the gradients as G.
template <class T, class G>
struct Update {
  StepFactors<T> factors;
  T decay;
  T* master;
  std::array<T*, kMostOptimizerSlots> state;
  const G* gradients;

  Update(const OptimizerSettings& s, const UpdateSlice& slice, std::uint64_t step)
      : factors{static_cast<T>(s.schedule.at(step)),
                slice.gradient_scale != nullptr ? static_cast<T>(*slice.gradient_scale) : T{1},
                static_cast<T>(s.momentum),
                static_cast<T>(s.beta1),
                static_cast<T>(s.beta2),
                static_cast<T>(s.epsilon),
                correction(s.beta1, step),
                correction(s.beta2, step)},
        decay(static_cast<T>(s.weight_decay)),
        master(static_cast<T*>(slice.master)),
        gradients(static_cast<const G*>(slice.gradients)) {
    for (std::size_t i = 0; i < state.size(); ++i) state[i] = static_cast<T*>(slice.state[i]);
  }

  static T correction(float beta, std::uint64_t step) {
    return static_cast<T>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step + 1))));
  }
  T decay_of(const UpdateChunk& chunk) const { return chunk.decays != 0 ? decay : T{0}; }
};

/// Notes the parameter if the square of one of its gradients in `chunk` is not finite.
template <class T, class G>
void note_nonfinite(const Update<T, G>& u, const UpdateChunk& chunk, NonFinite& found, std::uint64_t step) {
  bool finite = true;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = to_number<T>(u.gradients[chunk.begin + i]);
    finite &= gradient * gradient <= std::numeric_limits<T>::max();
  }
  if (finite) return;
  const std::uint64_t place = NonFinite::place(step, chunk.parameter);
  std::atomic_ref<std::uint64_t> first(found.first);
  for (std::uint64_t noted = first; noted < place && !first.compare_exchange_weak(noted, place);) {
  }
}

template <OptimizerKind kKind, class T, class G>
void update_chunk(const Update<T, G>& u, const UpdateChunk& chunk) {
  constexpr bool kTwoSlots = rule_of(kKind).slots > 1;
  const StepFactors<T> f = u.factors;
  const T decay = u.decay_of(chunk);
  T* __restrict w = u.master + chunk.begin;
  T* __restrict m = u.state[0] + chunk.begin;
  T* __restrict v = kTwoSlots ? u.state[1] + chunk.begin : nullptr;
  const G* __restrict g = u.gradients + chunk.begin;
  T none{};
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = to_number<T>(g[i]);
    if constexpr (kTwoSlots) {
      Rule<kKind>::step(f, decay, gradient, w[i], m[i], v[i]);
    } else {
      Rule<kKind>::step(f, decay, gradient, w[i], m[i], none);
    }
  }
}

/// Rounds the master weights of a chunk to bf16.
void round_weights(const UpdateSlice& slice, const UpdateChunk& chunk) {
  const float* master = static_cast<const float*>(slice.master) + chunk.begin;
  Bf16* weights = static_cast<Bf16*>(slice.weights) + chunk.begin;
  std::transform(master, master + chunk.count, weights, to_bf16);
}

class CpuOptimizer final : public OptimizerOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void advance(StepState* state, std::uint32_t steps, Stream) override {
    const std::uint64_t before = std::exchange(state->step, state->step + steps);
    if (state->log.every == 0) return;
    const std::uint64_t now = steady_nanoseconds();
    steps == 0 ? state->log.start(now) : state->log.note_time(before, state->step, now);
  }

  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream) override {
    check_update(settings.kind, slice, dtype());
    with_scalar([&]<class T>(T) {
      if (slice.gradient_type == DType::bf16) return update_as<T, Bf16>(settings, slice, step.value());
      update_as<T, T>(settings, slice, step.value());
    });
    if (slice.weights == slice.master || (slice.gradient_scale != nullptr && std::isnan(*slice.gradient_scale))) return;
    parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) { round_weights(slice, slice.chunks[i]); });
  }

  std::size_t inbox_bytes(const UpdateSlice&, int) const override { return 0; }

  void sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) override {
    fail("sum_and_update: not on CPUs");
  }

 private:
  template <class T, class G>
  void update_as(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step) {
    const Update<T, G> u(settings, slice, step);
    if (slice.nonfinite != nullptr) {
      parallel_each(slice.chunk_count, 64,
                    [&](std::int64_t i, int) { note_nonfinite(u, slice.chunks[i], *slice.nonfinite, step); });
    }
    if (std::isnan(u.factors.gradient_scale)) return;
    with_kind(settings.kind, [&](auto kind) {
      parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) { update_chunk<kind.value>(u, slice.chunks[i]); });
    });
  }
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cpu(Device& device) { return std::make_unique<CpuOptimizer>(device); }

}  // namespace ddptrain
