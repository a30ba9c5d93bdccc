#pragma once

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/optimizers/update.cuh"
#include "runtime/ops/cuda/reduce.cuh"

/// LAMB takes three passes, because its step needs the norms of whole parameters.

namespace ddptrain::cuda::optimizer {

/// Squared norms of weights and update: of every parameter of the arena, and of every chunk of this slice.
struct Norms {
  float *of_parameters, *of_chunks;

  __device__ explicit Norms(const UpdateSlice& slice)
      : of_parameters(slice.norms), of_chunks(slice.norms + 2 * (slice.parameter_count + slice.first_chunk)) {}
};

/// First pass: moments, and the norms of every chunk.
template <class G>
__global__ void __launch_bounds__(kThreads) moments_kernel(const Update u) {
  __shared__ float shared[kThreads / 32];
  const UpdateChunk chunk = u.slice.chunks[blockIdx.x];
  const StepFactors<float> f = u.factors();
  const float decay = u.decay_of(chunk);
  float weight_norm = 0.0f;
  float update_norm = 0.0f;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<2, G>(u, chunk, round);
    note_nonfinite(u, chunk.parameter, e);
    if (isnan(f.gradient_scale)) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i >= e.count) continue;
      update_moments(f, e.g[i] * f.gradient_scale, e.m[i], e.v[i]);
      const float update = direction(f, e.m[i], e.v[i]) + decay * e.w[i];
      weight_norm += e.w[i] * e.w[i];
      update_norm += update * update;
    }
    const std::size_t at = chunk.begin + offset_in_chunk(round);
    store_some(e.m, e.count, u.state(0) + at);
    store_some(e.v, e.count, u.state(1) + at);
  }
  weight_norm = block_sum<kThreads>(weight_norm, shared);
  update_norm = block_sum<kThreads>(update_norm, shared);
  if (threadIdx.x != 0) return;
  const Norms norms(u.slice);
  norms.of_chunks[2 * blockIdx.x] = weight_norm;
  norms.of_chunks[2 * blockIdx.x + 1] = update_norm;
}

/// Second pass: the block of a parameter's first chunk adds up the norms of its chunks.
static __global__ void __launch_bounds__(kThreads) norms_kernel(const Update u) {
  __shared__ double shared[kThreads / 32];
  const UpdateChunk* chunks = u.slice.chunks;
  const Norms norms(u.slice);
  const std::uint32_t parameter = chunks[blockIdx.x].parameter;
  if (blockIdx.x > 0 && chunks[blockIdx.x - 1].parameter == parameter) return;
  double weight_norm = 0.0;
  double update_norm = 0.0;
  for (std::uint32_t i = blockIdx.x + threadIdx.x; i < gridDim.x && chunks[i].parameter == parameter; i += kThreads) {
    weight_norm += norms.of_chunks[2 * i];
    update_norm += norms.of_chunks[2 * i + 1];
  }
  weight_norm = block_sum<kThreads>(weight_norm, shared);
  update_norm = block_sum<kThreads>(update_norm, shared);
  if (threadIdx.x != 0) return;
  norms.of_parameters[2 * parameter] = static_cast<float>(weight_norm);
  norms.of_parameters[2 * parameter + 1] = static_cast<float>(update_norm);
}

/// Third pass: weights.
template <bool kStochastic, class W, class G>
__global__ void __launch_bounds__(kThreads) weights_kernel(const Update u) {
  const UpdateChunk chunk = u.slice.chunks[blockIdx.x];
  const StepFactors<float> f = u.factors();
  if (isnan(f.gradient_scale)) return;
  const float decay = u.decay_of(chunk);
  const float* norms = Norms(u.slice).of_parameters + 2 * chunk.parameter;
  const float ratio = norms[0] > 0.0f && norms[1] > 0.0f ? sqrtf(norms[0] / norms[1]) : 1.0f;
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<2, G>(u, chunk, round);
    if (e.count == 0) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      e.w[i] -= f.learning_rate * ratio * (direction(f, e.m[i], e.v[i]) + decay * e.w[i]);
    }
    store_weights<kStochastic, W>(u, chunk, offset_in_chunk(round), e);
  }
}

template <bool kStochastic, class W, class G>
void launch_lamb(const Update& u, cudaStream_t stream) {
  require(u.slice.norms != nullptr, "update: no memory for norms");
  const auto pass = [&](auto kernel) { launch_kernel(kernel, u.slice.chunk_count, kThreads, 0, stream, u); };
  pass(moments_kernel<G>);
  pass(norms_kernel);
  pass(weights_kernel<kStochastic, W, G>);
}

}  // namespace ddptrain::cuda::optimizer
