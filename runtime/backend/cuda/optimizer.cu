#include <algorithm>
#include <cmath>
#include <type_traits>

#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/elements.cuh"
#include "runtime/backend/cuda/reduce.cuh"
#include "runtime/core/bf16.h"

namespace ddptrain {

namespace cuda {
namespace {

constexpr int kVector = 4;
constexpr std::uint32_t kThreads = 256;
constexpr std::uint32_t kRounds = kChunkElements / (kThreads * kVector);
static_assert(kRounds * kThreads * kVector == kChunkElements);

/// What kernels need of settings and slice; W is the type of weights, G of gradients.
template <class W, class G>
struct Update {
  OptimizerKind kind;
  LrSchedule schedule;
  float momentum, beta1, beta2, epsilon, decay;
  float log_beta1, log_beta2;
  StepRef step;
  const float* gradient_scale;
  const UpdateChunk* chunks;
  float* master;
  float* first;
  float* second;
  const G* gradients;
  W* weights;              ///< Null where the master weights are the weights.
  float* parameter_norms;  ///< lamb: squared norms of weight and update of every parameter,
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
  const int left = static_cast<int>(chunk.count) - static_cast<int>(offset);
  return left < 0 ? 0 : (left < kVector ? left : kVector);
}

template <bool kSecond, class W, class G>
__device__ __forceinline__ Elements load_elements(const Update<W, G>& u, const UpdateChunk& chunk,
                                                  std::uint32_t round) {
  Elements e{};
  const std::uint32_t offset = offset_in_chunk(round);
  e.count = count_at(chunk, offset);
  if (e.count == 0) return e;
  const std::size_t at = chunk.begin + offset;
  load_some(u.gradients + at, e.count, e.g);
  load_some(u.master + at, e.count, e.w);
  load_some(u.first + at, e.count, e.m);
  if constexpr (kSecond) load_some(u.second + at, e.count, e.v);
  return e;
}

/// The elements of `chunk` from `offset` on: master weights, and weights of another type beside them.
template <bool kStochastic, class W, class G>
__device__ __forceinline__ void store_weights(const Update<W, G>& u, const UpdateChunk& chunk, std::uint32_t offset,
                                              Elements& e) {
  const std::size_t at = chunk.begin + offset;
  store_some(e.w, e.count, u.master + at);
  if (u.weights == nullptr) return;
  if constexpr (kStochastic) {
    const Philox random = rounding_bits(u.rounding_seed, u.step.value(), chunk.parameter, chunk.element + offset);
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      e.w[i] = __uint_as_float(stochastic_bf16(__float_as_uint(e.w[i]), random.word[i]));
  }
  store_some(e.w, e.count, u.weights + at);
}

template <class W, class G>
__device__ __forceinline__ float direction(const Update<W, G>& u, const Factors& f, float m, float v) {
  return m * f.correction1 / (sqrtf(v * f.correction2) + u.epsilon);
}

template <OptimizerKind kKind, class W, class G>
__device__ __forceinline__ void step_element(const Update<W, G>& u, const Factors& f, float decay, float g, float& w,
                                             float& m, float& v) {
  float gradient = g * f.gradient_scale;
  if constexpr (kKind == OptimizerKind::sgd) {
    m = u.momentum * m + gradient + decay * w;
    w -= f.learning_rate * m;
  } else {
    if constexpr (kKind == OptimizerKind::adam) gradient += decay * w;
    m = u.beta1 * m + (1.0f - u.beta1) * gradient;
    v = u.beta2 * v + (1.0f - u.beta2) * gradient * gradient;
    if constexpr (kKind == OptimizerKind::adam) w -= f.learning_rate * direction(u, f, m, v);
    if constexpr (kKind == OptimizerKind::adamw) w -= f.learning_rate * (direction(u, f, m, v) + decay * w);
  }
}

/// sgd, adam and adamw, one block per chunk. All loads are issued before the first use; five blocks share a
/// multiprocessor, so that a million parameters are one wave.
template <OptimizerKind kKind, bool kStochastic, class W, class G>
__global__ void __launch_bounds__(kThreads, 5) update_kernel(Update<W, G> u) {
  constexpr bool kSecond = kKind != OptimizerKind::sgd;
  const UpdateChunk chunk = u.chunks[blockIdx.x];
  Elements elements[kRounds];
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) elements[round] = load_elements<kSecond>(u, chunk, round);
  const Factors f = factors_of(u);
  const float decay = chunk.decays != 0 ? u.decay : 0.0f;
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements& e = elements[round];
    if (e.count == 0) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) step_element<kKind>(u, f, decay, e.g[i], e.w[i], e.m[i], e.v[i]);
    const std::uint32_t offset = offset_in_chunk(round);
    store_some(e.m, e.count, u.first + chunk.begin + offset);
    if constexpr (kSecond) store_some(e.v, e.count, u.second + chunk.begin + offset);
    store_weights<kStochastic>(u, chunk, offset, e);
  }
}

/// lamb, first pass: moments, and the squared norms of weights and update of every chunk.
template <class W, class G>
__global__ void __launch_bounds__(kThreads) lamb_moments_kernel(Update<W, G> u) {
  __shared__ float shared[kThreads / 32];
  const UpdateChunk chunk = u.chunks[blockIdx.x];
  const Factors f = factors_of(u);
  const float decay = chunk.decays != 0 ? u.decay : 0.0f;
  float weight_norm = 0.0f;
  float update_norm = 0.0f;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<true>(u, chunk, round);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i >= e.count) continue;
      step_element<OptimizerKind::lamb>(u, f, decay, e.g[i], e.w[i], e.m[i], e.v[i]);
      const float update = direction(u, f, e.m[i], e.v[i]) + decay * e.w[i];
      weight_norm += e.w[i] * e.w[i];
      update_norm += update * update;
    }
    const std::size_t at = chunk.begin + offset_in_chunk(round);
    store_some(e.m, e.count, u.first + at);
    store_some(e.v, e.count, u.second + at);
  }
  weight_norm = block_sum<kThreads>(weight_norm, shared);
  update_norm = block_sum<kThreads>(update_norm, shared);
  if (threadIdx.x != 0) return;
  u.chunk_norms[2 * blockIdx.x] = weight_norm;
  u.chunk_norms[2 * blockIdx.x + 1] = update_norm;
}

/// lamb, second pass: the block of a parameter's first chunk adds up the norms of its chunks.
template <class W, class G>
__global__ void __launch_bounds__(kThreads) lamb_norms_kernel(Update<W, G> u, std::uint32_t chunk_count) {
  __shared__ double shared[kThreads / 32];
  const std::uint32_t parameter = u.chunks[blockIdx.x].parameter;
  if (blockIdx.x > 0 && u.chunks[blockIdx.x - 1].parameter == parameter) return;
  double weight_norm = 0.0;
  double update_norm = 0.0;
  for (std::uint32_t i = blockIdx.x + threadIdx.x; i < chunk_count && u.chunks[i].parameter == parameter;
       i += kThreads) {
    weight_norm += u.chunk_norms[2 * i];
    update_norm += u.chunk_norms[2 * i + 1];
  }
  weight_norm = block_sum<kThreads>(weight_norm, shared);
  update_norm = block_sum<kThreads>(update_norm, shared);
  if (threadIdx.x != 0) return;
  u.parameter_norms[2 * parameter] = static_cast<float>(weight_norm);
  u.parameter_norms[2 * parameter + 1] = static_cast<float>(update_norm);
}

/// lamb, third pass: weights.
template <class W, class G>
__global__ void __launch_bounds__(kThreads) lamb_weights_kernel(Update<W, G> u) {
  const UpdateChunk chunk = u.chunks[blockIdx.x];
  const Factors f = factors_of(u);
  const float decay = chunk.decays != 0 ? u.decay : 0.0f;
  const float weight_norm = u.parameter_norms[2 * chunk.parameter];
  const float update_norm = u.parameter_norms[2 * chunk.parameter + 1];
  const float ratio = weight_norm > 0.0f && update_norm > 0.0f ? sqrtf(weight_norm / update_norm) : 1.0f;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<true>(u, chunk, round);
    if (e.count == 0) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      e.w[i] -= f.learning_rate * ratio * (direction(u, f, e.m[i], e.v[i]) + decay * e.w[i]);
    }
    if (u.stochastic_rounding) {
      store_weights<true>(u, chunk, offset_in_chunk(round), e);
    } else {
      store_weights<false>(u, chunk, offset_in_chunk(round), e);
    }
  }
}

template <class W, class G>
Update<W, G> make_update(const OptimizerSettings& s, const UpdateSlice& slice, StepRef step) {
  const auto log_of = [](float beta) { return static_cast<float>(std::log(static_cast<double>(beta))); };
  Update<W, G> u{};
  u.kind = s.kind;
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
  u.chunks = slice.chunks;
  u.master = static_cast<float*>(slice.master);
  u.first = static_cast<float*>(slice.first_moment);
  u.second = static_cast<float*>(slice.second_moment);
  u.gradients = static_cast<const G*>(slice.gradients);
  u.weights = slice.weights == slice.master ? nullptr : static_cast<W*>(slice.weights);
  u.parameter_norms = slice.norms;
  if (slice.norms != nullptr) u.chunk_norms = slice.norms + 2 * (slice.parameter_count + slice.first_chunk);
  u.stochastic_rounding = s.stochastic_rounding;
  u.rounding_seed = s.rounding_seed;
  return u;
}

template <OptimizerKind kKind, class W, class G>
void launch_one_pass(const Update<W, G>& u, std::uint32_t chunks, cudaStream_t stream) {
  if constexpr (!std::is_same_v<W, float>) {
    if (u.stochastic_rounding) {
      update_kernel<kKind, true><<<chunks, kThreads, 0, stream>>>(u);
      return;
    }
  }
  update_kernel<kKind, false><<<chunks, kThreads, 0, stream>>>(u);
}

template <class W, class G>
void launch_update(const Update<W, G>& u, std::uint32_t chunks, cudaStream_t stream) {
  switch (u.kind) {
    case OptimizerKind::sgd:
      launch_one_pass<OptimizerKind::sgd>(u, chunks, stream);
      break;
    case OptimizerKind::adam:
      launch_one_pass<OptimizerKind::adam>(u, chunks, stream);
      break;
    case OptimizerKind::adamw:
      launch_one_pass<OptimizerKind::adamw>(u, chunks, stream);
      break;
    case OptimizerKind::lamb:
      lamb_moments_kernel<<<chunks, kThreads, 0, stream>>>(u);
      lamb_norms_kernel<<<chunks, kThreads, 0, stream>>>(u, chunks);
      lamb_weights_kernel<<<chunks, kThreads, 0, stream>>>(u);
      break;
  }
  DDP_CUDA(cudaGetLastError());
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

__global__ void __launch_bounds__(kThreads)
    clip_scale_kernel(const float* squares, std::uint32_t count, float max_norm, float* scale) {
  __shared__ double shared[kThreads / 32];
  double sum = 0.0;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) sum += squares[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *scale = fminf(1.0f, max_norm / (static_cast<float>(sqrt(sum)) + 1e-6f));
}

constexpr std::uint32_t kSquareBlocks = 528;  // four for each multiprocessor of an H200
constexpr int kSquareLoads = 4;               // in flight per thread

template <int V>
__device__ __forceinline__ float sum_of_squares(const float (&value)[V]) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < V; ++k) sum += value[k] * value[k];
  return sum;
}

template <class T, int V>
__global__ void __launch_bounds__(kThreads) squares_kernel(const T* values, std::size_t count, float* partials) {
  __shared__ float shared[kThreads / 32];
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads * V;
  std::size_t i = (static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  float sum = 0.0f;
  for (; i + (kSquareLoads - 1) * stride + V <= count; i += kSquareLoads * stride) {
    float value[kSquareLoads][V];
#pragma unroll
    for (int n = 0; n < kSquareLoads; ++n) load<V>(values + i + n * stride, value[n]);
#pragma unroll
    for (int n = 0; n < kSquareLoads; ++n) sum += sum_of_squares(value[n]);
  }
  for (; i + V <= count; i += stride) {
    float value[V];
    load<V>(values + i, value);
    sum += sum_of_squares(value);
  }
  for (; i < count; ++i) sum += to_float(values[i]) * to_float(values[i]);  // of one thread
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(const float* partials, std::uint32_t count, float* total) {
  __shared__ double shared[kThreads / 32];
  double sum = 0.0;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) sum += partials[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *total = static_cast<float>(sum);
}

}  // namespace
}  // namespace cuda

void CudaBackend::update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) {
  if (slice.chunk_count == 0) return;
  cuda::require(settings.kind == OptimizerKind::sgd || slice.second_moment != nullptr, "update: no second moment");
  cuda::require(settings.kind != OptimizerKind::lamb || slice.norms != nullptr, "update: lamb needs memory for norms");
  cuda::require((slice.weights == slice.master) == (slice.weight_type == DType::f32),
                "update: f32 weights are the master weights, others are not");
  cuda::with_types(slice, [&](auto weight, auto gradient) {
    cuda::launch_update(cuda::make_update<decltype(weight), decltype(gradient)>(settings, slice, step),
                        slice.chunk_count, static_cast<cudaStream_t>(stream.handle));
  });
}

void CudaBackend::sum_of_squares(const Tensor& values, float* sum, Stream stream) {
  cuda::require(values.dtype == DType::f32 || values.dtype == DType::bf16, "sum_of_squares: values are f32 or bf16");
  auto* queue = static_cast<cudaStream_t>(stream.handle);
  cuda::Scratch& scratch = queue == communication_.get() ? communication_norm_scratch_ : compute_norm_scratch_;
  auto* partials = scratch.reserve_elements<float>(cuda::kSquareBlocks, queue);
  const std::uint32_t blocks =
      std::clamp<std::uint32_t>(cuda::ceil_div(values.size(), cuda::kThreads * 16), 1, cuda::kSquareBlocks);
  cuda::with_element(values.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    const auto kernel = cuda::is_aligned(values.data, 16) ? cuda::squares_kernel<T, kWide> : cuda::squares_kernel<T, 1>;
    kernel<<<blocks, cuda::kThreads, 0, queue>>>(values.as<const T>(), static_cast<std::size_t>(values.size()),
                                                 partials);
  });
  DDP_CUDA(cudaGetLastError());
  cuda::sum_partials_kernel<<<1, cuda::kThreads, 0, queue>>>(partials, blocks, sum);
  DDP_CUDA(cudaGetLastError());
}

void CudaBackend::clip_scale(const Tensor& squares, float max_norm, float* scale, Stream stream) {
  cuda::require(squares.dtype == DType::f32, "clip_scale: squares are f32");
  cuda::clip_scale_kernel<<<1, cuda::kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
      squares.as<const float>(), static_cast<std::uint32_t>(squares.size()), max_norm, scale);
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain
