#include "runtime/ops/cuda/optimizers/rule.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda::optimizer {

namespace {

/// First pass: moments, and the squared norms of weights and update of every chunk.
template <class W, class G>
__global__ void __launch_bounds__(kThreads) moments_kernel(Update<W, G> u) {
  __shared__ float shared[kThreads / 32];
  const UpdateChunk chunk = u.chunks[blockIdx.x];
  const Factors f = factors_of(u);
  const float decay = chunk.decays != 0 ? u.decay : 0.0f;
  float weight_norm = 0.0f;
  float update_norm = 0.0f;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<2>(u, chunk, round);
    note_nonfinite(u, chunk.parameter, e);
    if (isnan(f.gradient_scale)) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i >= e.count) continue;
      update_moments(u, e.g[i] * f.gradient_scale, e.m[i], e.v[i]);
      const float update = direction(u, f, e.m[i], e.v[i]) + decay * e.w[i];
      weight_norm += e.w[i] * e.w[i];
      update_norm += update * update;
    }
    const std::size_t at = chunk.begin + offset_in_chunk(round);
    store_some(e.m, e.count, u.state[0] + at);
    store_some(e.v, e.count, u.state[1] + at);
  }
  weight_norm = block_sum<kThreads>(weight_norm, shared);
  update_norm = block_sum<kThreads>(update_norm, shared);
  if (threadIdx.x != 0) return;
  u.chunk_norms[2 * blockIdx.x] = weight_norm;
  u.chunk_norms[2 * blockIdx.x + 1] = update_norm;
}

/// Second pass: the block of a parameter's first chunk adds up the norms of its chunks.
template <class W, class G>
__global__ void __launch_bounds__(kThreads) norms_kernel(Update<W, G> u, std::uint32_t chunk_count) {
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

/// Third pass: weights.
template <class W, class G>
__global__ void __launch_bounds__(kThreads) weights_kernel(Update<W, G> u) {
  const UpdateChunk chunk = u.chunks[blockIdx.x];
  const Factors f = factors_of(u);
  if (isnan(f.gradient_scale)) return;
  const float decay = chunk.decays != 0 ? u.decay : 0.0f;
  const float weight_norm = u.parameter_norms[2 * chunk.parameter];
  const float update_norm = u.parameter_norms[2 * chunk.parameter + 1];
  const float ratio = weight_norm > 0.0f && update_norm > 0.0f ? sqrtf(weight_norm / update_norm) : 1.0f;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<2>(u, chunk, round);
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

}  // namespace

template <>
struct Passes<OptimizerKind::lamb> {
  template <class W, class G>
  static void launch(const Update<W, G>& u, std::uint32_t chunks, cudaStream_t stream) {
    moments_kernel<<<chunks, kThreads, 0, stream>>>(u);
    norms_kernel<<<chunks, kThreads, 0, stream>>>(u, chunks);
    weights_kernel<<<chunks, kThreads, 0, stream>>>(u);
  }
};

template struct Rule<OptimizerKind::lamb>;

}  // namespace ddptrain::cuda::optimizer
