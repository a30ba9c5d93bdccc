#pragma once

#include <cmath>
#include <type_traits>

#include "runtime/core/bf16.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/optimizers/optimizer.h"

/// What the kernels that update parameters share: a thread has kVector neighbouring elements of a chunk in each of
/// kRounds rounds.

namespace ddptrain::cuda::optimizer {

inline constexpr int kVector = 4;
inline constexpr std::uint32_t kThreads = 256;
inline constexpr std::uint32_t kRounds = kChunkElements / (kThreads * kVector);
static_assert(kRounds * kThreads * kVector == kChunkElements);

/// What kernels need of settings and slice; W is the type of weights, G of gradients.
template <class W, class G>
struct Update {
  LrSchedule schedule;
  float momentum, beta1, beta2, epsilon, decay;
  float log_beta1, log_beta2;
  StepRef step;
  const float* gradient_scale;
  NonFinite* nonfinite;
  const UpdateChunk* chunks;
  float* master;
  float* state[kMostOptimizerSlots];
  const G* gradients;
  W* weights;  ///< Null where the master weights are the weights.
  W* peer_weights[PeerInboxes::kMaxRanks - 1];
  float* parameter_norms;  ///< Of whole parameters: squared norms of weight and update of every one,
  float* chunk_norms;      ///< and of every chunk of this slice.
  bool stochastic_rounding;
  std::uint64_t rounding_seed;
};

/// The factors of one step.
struct Factors {
  float learning_rate, gradient_scale;
  float correction1, correction2;  ///< 1 / (1 - beta^t)
};

template <class W, class G>
__device__ Factors factors_of(const Update<W, G>& u) {
  const std::uint64_t step = u.step.value();
  const auto t = static_cast<float>(step + 1);
  return {u.schedule.at(step), u.gradient_scale != nullptr ? *u.gradient_scale : 1.0f, -1.0f / expm1f(t * u.log_beta1),
          -1.0f / expm1f(t * u.log_beta2)};
}

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

template <std::size_t kSlots, class W, class G>
__device__ __forceinline__ Elements load_elements(const Update<W, G>& u, const UpdateChunk& chunk,
                                                  std::uint32_t round) {
  Elements e{};
  const std::uint32_t offset = offset_in_chunk(round);
  e.count = count_at(chunk, offset);
  if (e.count == 0) return e;
  const std::size_t at = chunk.begin + offset;
  load_some(u.gradients + at, e.count, e.g);
  load_some(u.master + at, e.count, e.w);
  load_some(u.state[0] + at, e.count, e.m);
  if constexpr (kSlots > 1) load_some(u.state[1] + at, e.count, e.v);
  return e;
}

template <class W, class G>
__device__ __forceinline__ void store_to_peers(const Update<W, G>& u, std::size_t at, const Elements& e) {
#pragma unroll
  for (W* weights : u.peer_weights) {
    if (weights == nullptr) return;
    store_some(e.w, e.count, weights + at);
  }
}

/// The elements of `chunk` from `offset` on: master weights, and weights of another type beside them.
template <bool kStochastic, class W, class G>
__device__ __forceinline__ void store_weights(const Update<W, G>& u, const UpdateChunk& chunk, std::uint32_t offset,
                                              Elements& e) {
  const std::size_t at = chunk.begin + offset;
  store_some(e.w, e.count, u.master + at);
  if (u.weights == nullptr) return store_to_peers(u, at, e);
  if constexpr (kStochastic) {
    const Philox random = rounding_bits(u.rounding_seed, u.step.value(), chunk.identity, chunk.element + offset);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      e.w[i] = __uint_as_float(stochastic_bf16(__float_as_uint(e.w[i]), random.word[i]));
  }
  store_some(e.w, e.count, u.weights + at);
  store_to_peers(u, at, e);
}

/// Of adam and its kin, as update_moments: the moments' part of the update.
template <class W, class G>
__device__ __forceinline__ float direction(const Update<W, G>& u, const Factors& f, float m, float v) {
  return m * f.correction1 / (sqrtf(v * f.correction2) + u.epsilon);
}

template <class W, class G>
__device__ __forceinline__ void update_moments(const Update<W, G>& u, float gradient, float& m, float& v) {
  m = u.beta1 * m + (1.0f - u.beta1) * gradient;
  v = u.beta2 * v + (1.0f - u.beta2) * gradient * gradient;
}

/// Takes one element further: static __device__ void element(const Update<W, G>& u, const Factors& f, float decay,
/// float gradient, float& w, float& m, float& v), m and v being its state.
template <OptimizerKind kKind>
struct Step;

/// Notes the parameter where the square of one of its gradients is not finite. Most find the place taken.
template <class W, class G>
__device__ __forceinline__ void note_nonfinite(const Update<W, G>& u, std::uint32_t parameter, const Elements& e) {
  float zero = 0.0f;  // or NaN
#pragma unroll
  for (int i = 0; i < kVector; ++i) zero = fmaf(e.g[i] * e.g[i], 0.0f, zero);
  if (zero == 0.0f || u.nonfinite == nullptr) return;
  const unsigned long long place = NonFinite::place(u.step.value(), parameter);
  auto* first = reinterpret_cast<unsigned long long*>(&u.nonfinite->first);
  if (*static_cast<volatile unsigned long long*>(first) < place) atomicMax(first, place);
}

/// Takes the elements `e` of one round of a chunk a step further, and stores them.
template <OptimizerKind kKind, bool kStochastic, class W, class G>
__device__ __forceinline__ void update_elements(const Update<W, G>& u, const Factors& f, const UpdateChunk& chunk,
                                                std::uint32_t round, Elements& e) {
  const float decay = chunk.decays != 0 ? u.decay : 0.0f;
  note_nonfinite(u, chunk.parameter, e);
  if (isnan(f.gradient_scale)) return;
#pragma unroll
  for (int i = 0; i < kVector; ++i)
    Step<kKind>::element(u, f, decay, e.g[i] * f.gradient_scale, e.w[i], e.m[i], e.v[i]);
  const std::uint32_t offset = offset_in_chunk(round);
  store_some(e.m, e.count, u.state[0] + chunk.begin + offset);
  if constexpr (rule_of(kKind).slots > 1) store_some(e.v, e.count, u.state[1] + chunk.begin + offset);
  store_weights<kStochastic>(u, chunk, offset, e);
}

/// Throws Error where the slice lacks what the update needs.
inline void check(OptimizerKind kind, const UpdateSlice& slice) {
  require(!rule_of(kind).whole_parameters || slice.norms != nullptr, "update: no memory for norms");
  require((slice.weights == slice.master) == (slice.weight_type == DType::f32),
          "update: f32 weights are the master weights, others are not");
}

template <class W, class G>
Update<W, G> make_update(const OptimizerSettings& s, const UpdateSlice& slice, StepRef step) {
  const auto log_of = [](float beta) { return static_cast<float>(std::log(static_cast<double>(beta))); };
  Update<W, G> u{};
  u.schedule = s.schedule;
  u.momentum = s.momentum;
  u.beta1 = s.beta1;
  u.beta2 = s.beta2;
  u.epsilon = s.epsilon;
  u.decay = s.weight_decay;
  u.log_beta1 = log_of(s.beta1);
  u.log_beta2 = log_of(s.beta2);
  u.step = step;
  u.gradient_scale = slice.gradient_scale;
  u.nonfinite = slice.nonfinite;
  u.chunks = slice.chunks;
  u.master = static_cast<float*>(slice.master);
  for (std::size_t i = 0; i < kMostOptimizerSlots; ++i) u.state[i] = static_cast<float*>(slice.state[i]);
  u.gradients = static_cast<const G*>(slice.gradients);
  u.weights = slice.weights == slice.master ? nullptr : static_cast<W*>(slice.weights);
  for (std::size_t i = 0; i < slice.peer_weights.size(); ++i)
    u.peer_weights[i] = static_cast<W*>(slice.peer_weights[i]);
  u.parameter_norms = slice.norms;
  if (slice.norms != nullptr) u.chunk_norms = slice.norms + 2 * (slice.parameter_count + slice.first_chunk);
  u.stochastic_rounding = s.stochastic_rounding;
  u.rounding_seed = s.rounding_seed;
  return u;
}

/// Calls work(W{}, G{}) with the types of weights and gradients.
template <class Work>
void with_types(const UpdateSlice& slice, Work&& work) {
  if (slice.weight_type == DType::f32) {
    require(slice.gradient_type == DType::f32, "update: f32 weights have f32 gradients");
    return work(float{}, float{});
  }
  require(slice.weight_type == DType::bf16, "update: weights are f32 or bf16");
  if (slice.gradient_type == DType::bf16) return work(__nv_bfloat16{}, __nv_bfloat16{});
  require(slice.gradient_type == DType::f32, "update: gradients are f32 or bf16");
  work(__nv_bfloat16{}, float{});
}

/// Calls work(std::bool_constant: whether rounding is stochastic).
template <class W, class G, class Work>
void with_rounding(const Update<W, G>& u, Work&& work) {
  if constexpr (!std::is_same_v<W, float>) {
    if (u.stochastic_rounding) return work(std::true_type{});
  }
  work(std::false_type{});
}

}  // namespace ddptrain::cuda::optimizer
