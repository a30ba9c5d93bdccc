#pragma once

#include <cmath>
#include <type_traits>

#include "runtime/core/bf16.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/optimizers/optimizer_rules.h"

/// Code of the kernels that update parameters. A thread has kVector neighbouring elements of a chunk in each of kRounds
/// rounds. They compute in f32.

namespace ddptrain::cuda::optimizer {

inline constexpr int kVector = 4;
inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kRounds = kChunkElements / (kThreads * kVector);
static_assert(kRounds * kThreads * kVector == kChunkElements);

/// One update, as kernels get it.
struct Update {
  OptimizerSettings settings;
  UpdateSlice slice;
  StepRef step;
  float log_beta1, log_beta2;

  Update(const OptimizerSettings& s, const UpdateSlice& what, StepRef when)
      : settings(s), slice(what), step(when), log_beta1(log_of(s.beta1)), log_beta2(log_of(s.beta2)) {}

  __device__ float decay_of(const UpdateChunk& chunk) const { return chunk.decays != 0 ? settings.weight_decay : 0.0f; }
  __device__ StepFactors<float> factors(const UpdateChunk& chunk) const {
    const std::uint64_t now = step.value();
    const auto t = static_cast<float>(now + 1);
    return {.learning_rate = settings.schedule.at(now),
            .gradient_scale = slice.gradient_scale != nullptr ? *slice.gradient_scale : 1.0f,
            .momentum = settings.momentum,
            .beta1 = settings.beta1,
            .beta2 = settings.beta2,
            .epsilon = settings.epsilon,
            .correction1 = -1.0f / expm1f(t * log_beta1),
            .correction2 = -1.0f / expm1f(t * log_beta2),
            .muon_momentum = settings.muon_momentum,
            .of_matrix = chunk.of_matrix != 0,
            .trust_ratio = slice.trust_ratios != nullptr ? slice.trust_ratios[chunk.parameter] : 1.0f};
  }

 private:
  static float log_of(float beta) { return static_cast<float>(std::log(static_cast<double>(beta))); }
};

/// The types of the arrays. Weights of f32 are the master weights.
template <class W, class G, class S = float, bool kMaster = true>
struct Arrays {
  using Weight = W;
  using Gradient = G;
  using State = S;
  static constexpr bool kHasMaster = kMaster;
  using Updated = std::conditional_t<kMaster, float, W>;  ///< The weights that are read: master weights, if any.
  static constexpr bool kRoundsState = !std::is_same_v<S, float>;
  static constexpr bool kRoundsAtRandom = !kMaster || kRoundsState;
};

/// kVector neighbouring elements; `count` of them exist.
struct Elements {
  float w[kVector], m[kVector], v[kVector], g[kVector];
  int count = 0;
};

template <class T>
__device__ __forceinline__ void load_some(const T* from, int count, float (&to)[kVector]) {
  if (count == kVector) return load<kVector>(from, to);
#pragma unroll
  for (int i = 0; i < kVector; ++i) to[i] = i < count ? to_float(from[i]) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store_some(const float (&from)[kVector], int count, T* to) {
  if (count == kVector) return store<kVector>(from, to);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    if (i < count) to[i] = from_float<T>(from[i]);
  }
}

__device__ __forceinline__ std::uint32_t offset_in_chunk(std::uint32_t round) {
  return (round * kThreads + threadIdx.x) * kVector;
}

__device__ __forceinline__ int count_at(const UpdateChunk& chunk, std::uint32_t offset) {
  const std::uint32_t count = chunk.count;
  return offset < count ? static_cast<int>(min(count - offset, static_cast<std::uint32_t>(kVector))) : 0;
}

template <class A>
__device__ __forceinline__ typename A::State* state_of(const Update& u, int slot) {
  return static_cast<typename A::State*>(u.slice.state[slot]);
}

/// All but the gradients.
template <std::size_t kSlots, class A>
__device__ __forceinline__ Elements load_weights(const Update& u, const UpdateChunk& chunk, std::uint32_t round) {
  Elements e{};
  const std::uint32_t offset = offset_in_chunk(round);
  e.count = count_at(chunk, offset);
  if (e.count == 0) return e;
  const std::size_t at = chunk.offset_from(u.slice.position) + offset;
  load_some(static_cast<const typename A::Updated*>(u.slice.master) + at, e.count, e.w);
  load_some(state_of<A>(u, 0) + at, e.count, e.m);
  if constexpr (kSlots > 1) load_some(state_of<A>(u, 1) + at, e.count, e.v);
  return e;
}

template <class A>
__device__ __forceinline__ void load_gradients(const Update& u, const UpdateChunk& chunk, std::uint32_t round,
                                               Elements& e) {
  if (e.count == 0) return;
  const std::size_t at = chunk.offset_from(u.slice.position) + offset_in_chunk(round);
  load_some(static_cast<const typename A::Gradient*>(u.slice.gradients) + at, e.count, e.g);
}

template <std::size_t kSlots, class A>
__device__ __forceinline__ Elements load_elements(const Update& u, const UpdateChunk& chunk, std::uint32_t round) {
  Elements e = load_weights<kSlots, A>(u, chunk, round);
  load_gradients<A>(u, chunk, round, e);
  return e;
}

/// What a chunk needs to round its elements at random.
struct Rounding {
  RoundedParameter parameter;
  RoundingBits random;
};
struct NoRounding {};

template <class A>
__device__ __forceinline__ auto rounding_of(const Update& u, const UpdateChunk& chunk) {
  if constexpr (A::kRoundsAtRandom) {
    const RoundedParameter parameter = u.slice.parameters[chunk.parameter];
    return Rounding{parameter, RoundingBits(u.settings.rounding_seed, u.step.value(), parameter.identity)};
  } else {
    return NoRounding{};
  }
}

/// Rounds what becomes bf16 in memory and has no wider copy. Stores round it no further.
template <class A, std::size_t kSlots>
__device__ __forceinline__ void round_at_random(const Rounding& rounding, const UpdateChunk& chunk,
                                                std::uint32_t offset, Elements& e) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const std::uint32_t element = rounding.parameter.element(chunk.element + offset + i);
    const RoundingBits::OfElement bits = rounding.random.of(element);
    if constexpr (!A::kHasMaster) e.w[i] = ddptrain::round_at_random(e.w[i], bits.weight);
    if constexpr (A::kRoundsState) e.m[i] = ddptrain::round_at_random(e.m[i], bits.first_moment);
    if constexpr (A::kRoundsState && kSlots > 1) e.v[i] = ddptrain::round_at_random(e.v[i], bits.second_moment);
  }
}

/// Stores the elements of `chunk` from `offset` on: master weights, bf16 weights next to them, and the weights of
/// peers.
template <class A>
__device__ __forceinline__ void store_weights(const Update& u, const UpdateChunk& chunk, std::uint32_t offset,
                                              Elements& e) {
  using W = typename A::Weight;
  const std::size_t at = chunk.offset_from(u.slice.position) + offset;
  store_some(e.w, e.count, static_cast<typename A::Updated*>(u.slice.master) + at);
  if constexpr (A::kHasMaster && !std::is_same_v<W, float>) {
    store_some(e.w, e.count, static_cast<W*>(u.slice.weights) + at);
  }
#pragma unroll
  for (std::size_t i = 0; i < PeerInboxes::kMaxRanks - 1; ++i) {
    if (u.slice.peer_weights[i] == nullptr) return;
    store_some(e.w, e.count, static_cast<W*>(u.slice.peer_weights[i]) + at);
  }
}

/// Notes the parameter if the square of one of its gradients is not finite. Most threads find the place taken.
__device__ __forceinline__ void note_nonfinite(const Update& u, std::uint32_t parameter, const Elements& e) {
  float zero = 0.0f;  // or NaN
#pragma unroll
  for (int i = 0; i < kVector; ++i) zero = fmaf(e.g[i] * e.g[i], 0.0f, zero);
  if (zero == 0.0f || u.slice.nonfinite == nullptr) return;
  const unsigned long long place = NonFinite::place(u.step.value(), parameter);
  auto* first = reinterpret_cast<unsigned long long*>(&u.slice.nonfinite->first);
  if (*static_cast<volatile unsigned long long*>(first) < place) atomicMax(first, place);
}

/// Updates the elements `e` of one round of a chunk, and stores them.
template <OptimizerKind kKind, class A, class R>
__device__ __forceinline__ void update_elements(const Update& u, const StepFactors<float>& f, const R& rounding,
                                                const UpdateChunk& chunk, std::uint32_t round, Elements& e) {
  note_nonfinite(u, chunk.parameter, e);
  if (isnan(f.gradient_scale)) return;
  const float decay = u.decay_of(chunk);
#pragma unroll
  for (int i = 0; i < kVector; ++i) Rule<kKind>::step(f, decay, e.g[i], e.w[i], e.m[i], e.v[i]);
  constexpr std::size_t kSlots = rule_of(kKind).slots;
  const std::uint32_t offset = offset_in_chunk(round);
  if constexpr (A::kRoundsAtRandom) round_at_random<A, kSlots>(rounding, chunk, offset, e);
  const std::size_t at = chunk.offset_from(u.slice.position) + offset;
  store_some(e.m, e.count, state_of<A>(u, 0) + at);
  if constexpr (kSlots > 1) store_some(e.v, e.count, state_of<A>(u, 1) + at);
  store_weights<A>(u, chunk, offset, e);
}

/// Calls work(Arrays<W, G>{}).
template <class Work>
void with_types(const UpdateSlice& slice, Work&& work) {
  if (slice.weight_type == DType::f32) {
    require(slice.gradient_type == DType::f32, "update: f32 weights have f32 gradients");
    return work(Arrays<float, float>{});
  }
  with_element(slice.gradient_type, [&]<class G>(G) { work(Arrays<__nv_bfloat16, G>{}); });
}

/// The same for a slice of which something is rounded at random.
template <class Work>
void with_rounded_types(const UpdateSlice& slice, Work&& work) {
  if (slice.masterless) {
    require(slice.weight_type == DType::bf16, "update: f32 weights are master weights");
    return with_element(slice.gradient_type, [&]<class G>(G) {
      with_element(slice.state_type, [&]<class S>(S) { work(Arrays<__nv_bfloat16, G, S, false>{}); });
    });
  }
  with_types(slice, [&]<class W, class G>(Arrays<W, G>) { work(Arrays<W, G, __nv_bfloat16>{}); });
}

}  // namespace ddptrain::cuda::optimizer
