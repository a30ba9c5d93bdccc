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
#include "runtime/ops/optimizers/optimizer_rules.h"

namespace ddptrain {

namespace {

/// Computes in T; the gradients are of type G.
template <class T, class G>
struct Update {
  StepFactors<T> factors;
  T decay;
  G* gradients;
  std::uint32_t position;
  const float* trust_ratios;

  Update(const OptimizerSettings& s, const UpdateSlice& slice, std::uint64_t step)
      : factors{.learning_rate = static_cast<T>(s.schedule.at(step)),
                .gradient_scale = slice.gradient_scale != nullptr ? static_cast<T>(*slice.gradient_scale) : T{1},
                .momentum = static_cast<T>(s.momentum),
                .beta1 = static_cast<T>(s.beta1),
                .beta2 = static_cast<T>(s.beta2),
                .epsilon = static_cast<T>(s.epsilon),
                .correction1 = correction(s.beta1, step),
                .correction2 = correction(s.beta2, step),
                .muon_momentum = static_cast<T>(s.muon_momentum),
                .of_matrix = false,
                .trust_ratio = T{1}},
        decay(static_cast<T>(s.weight_decay)),
        gradients(static_cast<G*>(slice.gradients)),
        position(slice.position),
        trust_ratios(slice.trust_ratios) {}

  static T correction(float beta, std::uint64_t step) {
    return static_cast<T>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step + 1))));
  }
  StepFactors<T> factors_of(const UpdateChunk& chunk) const {
    StepFactors<T> f = factors;
    f.of_matrix = chunk.of_matrix != 0;
    if (trust_ratios != nullptr) f.trust_ratio = static_cast<T>(trust_ratios[chunk.parameter]);
    return f;
  }
  T decay_of(const UpdateChunk& chunk) const { return chunk.decays != 0 ? decay : T{0}; }
  G* gradients_of(const UpdateChunk& chunk) const { return gradients + chunk.offset_from(position); }
};

/// Notes the parameter if the square of one of its gradients in `chunk` is not finite.
template <class T, class G>
void note_nonfinite(const Update<T, G>& u, const UpdateChunk& chunk, NonFinite& found, std::uint64_t step) {
  const G* gradients = u.gradients_of(chunk);
  bool finite = true;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = to_number<T>(gradients[i]);
    finite &= gradient * gradient <= std::numeric_limits<T>::max();
  }
  if (finite) return;
  const std::uint64_t place = NonFinite::place(step, chunk.parameter);
  std::atomic_ref<std::uint64_t> first(found.first);
  for (std::uint64_t noted = first; noted < place && !first.compare_exchange_weak(noted, place);) {
  }
}

/// Updates the weights `w` and the state, `m` and `v`, of a chunk. A rule of one slot has no `v`.
template <OptimizerKind kKind, class T, class G>
void update_chunk(const Update<T, G>& u, const UpdateChunk& chunk, T* __restrict w, T* __restrict m, T* __restrict v) {
  constexpr bool kTwoSlots = rule_of(kKind).slots > 1;
  const StepFactors<T> f = u.factors_of(chunk);
  const T decay = u.decay_of(chunk);
  const G* __restrict g = u.gradients_of(chunk);
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

/// Updates a chunk where it lies.
template <OptimizerKind kKind, class T, class G>
void update_in_place(const Update<T, G>& u, const UpdateSlice& slice, const UpdateChunk& chunk) {
  constexpr bool kTwoSlots = rule_of(kKind).slots > 1;
  const std::size_t at = chunk.offset_from(slice.position);
  T* const v = kTwoSlots ? static_cast<T*>(slice.state[1]) + at : nullptr;
  update_chunk<kKind>(u, chunk, static_cast<T*>(slice.master) + at, static_cast<T*>(slice.state[0]) + at, v);
}

/// Elements of a chunk in an array that may be of bf16, as numbers of type T. `array`: the array of the slice.
template <class T>
class Widened {
 public:
  Widened(void* array, DType type, const UpdateSlice& slice, const UpdateChunk& chunk)
      : array_(array), type_(type), begin_(chunk.offset_from(slice.position)), count_(chunk.count) {
    if (type_ == DType::bf16) {
      const Bf16* from = static_cast<const Bf16*>(array_) + begin_;
      for (std::uint32_t i = 0; i < count_; ++i) values_[i] = to_number<T>(from[i]);
    } else {
      std::copy_n(static_cast<const T*>(array_) + begin_, count_, values_.data());
    }
  }

  T* values() { return values_.data(); }
  /// Stores them rounded to the nearest number of the array's type.
  void store() const {
    if (type_ == DType::bf16) {
      std::transform(values_.data(), values_.data() + count_, static_cast<Bf16*>(array_) + begin_,
                     [](T value) { return to_bf16(static_cast<float>(value)); });
    } else {
      std::copy_n(values_.data(), count_, static_cast<T*>(array_) + begin_);
    }
  }
  /// Stores them rounded to bf16; bits(i): the random bits of number i.
  template <class Bits>
  void store_at_random(const Bits& bits) const {
    for (std::uint32_t i = 0; i < count_; ++i) {
      const float rounded = round_at_random(static_cast<float>(values_[i]), bits(i));
      if (type_ == DType::bf16) {
        static_cast<Bf16*>(array_)[begin_ + i] = to_bf16(rounded);
      } else {
        static_cast<T*>(array_)[begin_ + i] = static_cast<T>(rounded);
      }
    }
  }

 private:
  void* array_;
  DType type_;
  std::size_t begin_;
  std::uint32_t count_;
  std::array<T, kChunkElements> values_;
};

/// Updates a chunk of which something is rounded at random.
template <OptimizerKind kKind, class T, class G>
void update_at_random(const Update<T, G>& u, const UpdateSlice& slice, const UpdateChunk& chunk,
                      const RoundingBits& bits) {
  constexpr bool kTwoSlots = rule_of(kKind).slots > 1;
  constexpr DType kWide = std::is_same_v<T, double> ? DType::f64 : DType::f32;
  Widened<T> w(slice.master, slice.masterless ? slice.weight_type : kWide, slice, chunk);
  Widened<T> m(slice.state[0], slice.state_type, slice, chunk);
  Widened<T> v(slice.state[kTwoSlots ? 1 : 0], slice.state_type, slice, chunk);
  update_chunk<kKind>(u, chunk, w.values(), m.values(), v.values());
  const RoundedParameter& parameter = slice.parameters[chunk.parameter];
  const auto bits_of = [&](std::uint32_t i) { return bits.of(parameter.element(chunk.element + i)); };
  const bool rounds_state = slice.state_type == DType::bf16;
  if (slice.masterless) {
    w.store_at_random([&](std::uint32_t i) { return bits_of(i).weight; });
  } else {
    w.store();
  }
  if (rounds_state) {
    m.store_at_random([&](std::uint32_t i) { return bits_of(i).first_moment; });
  } else {
    m.store();
  }
  if constexpr (!kTwoSlots) return;
  if (rounds_state) {
    v.store_at_random([&](std::uint32_t i) { return bits_of(i).second_moment; });
  } else {
    v.store();
  }
}

/// Adds the momentum of a chunk of a matrix to its gradients.
template <class T, class G>
void add_momentum_to(const Update<T, G>& u, const UpdateSlice& slice, const UpdateChunk& chunk,
                     const OptimizerSettings& settings, std::uint64_t step) {
  constexpr DType kWide = std::is_same_v<T, double> ? DType::f64 : DType::f32;
  constexpr DType kGradients = std::is_same_v<G, Bf16> ? DType::bf16 : kWide;
  Widened<T> g(u.gradients, kGradients, slice, chunk);
  Widened<T> m(slice.state[0], slice.state_type, slice, chunk);
  for (std::uint32_t i = 0; i < chunk.count; ++i) add_momentum(u.factors, g.values()[i], m.values()[i]);
  g.store();
  if (slice.state_type != DType::bf16) return m.store();
  const RoundedParameter& parameter = slice.parameters[chunk.parameter];
  const RoundingBits bits(settings.rounding_seed, step, parameter.identity);
  m.store_at_random([&](std::uint32_t i) { return bits.of(parameter.element(chunk.element + i)).first_moment; });
}

/// The squares of a chunk's weights, and of their update by LAMB.
template <class T, class G>
UpdateSquares squares_of(const Update<T, G>& u, const UpdateSlice& slice, const UpdateChunk& chunk) {
  constexpr DType kWide = std::is_same_v<T, double> ? DType::f64 : DType::f32;
  Widened<T> w(slice.master, slice.masterless ? slice.weight_type : kWide, slice, chunk);
  Widened<T> m(slice.state[0], slice.state_type, slice, chunk);
  Widened<T> v(slice.state[1], slice.state_type, slice, chunk);
  const G* gradients = u.gradients_of(chunk);
  double weights = 0.0;
  double updates = 0.0;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = to_number<T>(gradients[i]);
    const double weight = w.values()[i];
    const double update =
        Rule<OptimizerKind::lamb>::update(u.factors, u.decay, gradient, w.values()[i], m.values()[i], v.values()[i]);
    weights += weight * weight;
    updates += update * update;
  }
  return {static_cast<float>(weights), static_cast<float>(updates)};
}

/// Rounds the master weights of a chunk to bf16.
void round_weights(const UpdateSlice& slice, const UpdateChunk& chunk) {
  const std::size_t at = chunk.offset_from(slice.position);
  const float* master = static_cast<const float*>(slice.master) + at;
  Bf16* weights = static_cast<Bf16*>(slice.weights) + at;
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

  void add_momentum(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream) override {
    check_update(settings.kind, slice, dtype());
    with_scalar([&]<class T>(T) {
      if (slice.gradient_type == DType::bf16) return add_momentum_as<T, Bf16>(settings, slice, step.value());
      add_momentum_as<T, T>(settings, slice, step.value());
    });
  }

  void update_squares(const OptimizerSettings& settings, const UpdateSlice& slice, const std::uint32_t* first_chunk,
                      UpdateSquares* squares, StepRef step, Stream) override {
    check_update(settings.kind, slice, dtype());
    with_scalar([&]<class T>(T) {
      if (slice.gradient_type == DType::bf16) {
        return update_squares_as<T, Bf16>(settings, slice, first_chunk, squares, step.value());
      }
      update_squares_as<T, T>(settings, slice, first_chunk, squares, step.value());
    });
  }

  void trust_ratios(const UpdateSquares* squares, const std::uint32_t* first_chunk, const Tensor& ratios,
                    Stream) override {
    for (std::int64_t parameter = 0; parameter < ratios.size(); ++parameter) {
      double weights = 0.0;
      double update = 0.0;
      for (std::uint32_t chunk = first_chunk[parameter]; chunk < first_chunk[parameter + 1]; ++chunk) {
        weights += static_cast<double>(squares[chunk].weights);
        update += static_cast<double>(squares[chunk].update);
      }
      ratios.as<float>()[parameter] = trust_ratio(weights, update);
    }
  }

  std::size_t inbox_bytes(const UpdateSlice&, int) const override { return 0; }

  void sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) override {
    fail("sum_and_update: not on CPUs");
  }

 private:
  template <class T, class G>
  void add_momentum_as(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step) {
    const Update<T, G> u(settings, slice, step);
    parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) {
      const UpdateChunk& chunk = slice.chunks[i];
      if (chunk.of_matrix == 0) return;
      if (slice.nonfinite != nullptr) note_nonfinite(u, chunk, *slice.nonfinite, step);
      if (!std::isnan(u.factors.gradient_scale)) add_momentum_to(u, slice, chunk, settings, step);
    });
  }

  template <class T, class G>
  void update_squares_as(const OptimizerSettings& settings, const UpdateSlice& slice, const std::uint32_t* first_chunk,
                         UpdateSquares* squares, std::uint64_t step) {
    const Update<T, G> u(settings, slice, step);
    parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) {
      const UpdateChunk& chunk = slice.chunks[i];
      if (chunk.decays == 0) return;
      squares[first_chunk[chunk.parameter] + chunk.element / kChunkElements] = squares_of(u, slice, chunk);
    });
  }

  template <class T, class G>
  void update_as(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step) {
    const Update<T, G> u(settings, slice, step);
    with_kind(settings.kind, [&](auto kind) {
      parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) {
        const UpdateChunk& chunk = slice.chunks[i];
        if (slice.nonfinite != nullptr) note_nonfinite(u, chunk, *slice.nonfinite, step);
        if (std::isnan(u.factors.gradient_scale)) return;
        if (!slice.rounds_at_random()) return update_in_place<kind.value>(u, slice, chunk);
        const std::uint32_t identity = slice.parameters[chunk.parameter].identity;
        update_at_random<kind.value>(u, slice, chunk, RoundingBits(settings.rounding_seed, step, identity));
      });
    });
  }
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cpu(Device& device) { return std::make_unique<CpuOptimizer>(device); }

}  // namespace ddptrain
