#include "runtime/ops/cuda/optimizer.cuh"

#include "runtime/ops/cuda/optimizer.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda::optimizer {
namespace {

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
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    if (elements[round].count > 0) update_elements<kKind, kStochastic>(u, f, chunk, round, elements[round]);
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
void launch_update(const Update<W, G>& u, std::uint32_t chunks, cudaStream_t stream) {
  if (u.kind == OptimizerKind::lamb) {
    lamb_moments_kernel<<<chunks, kThreads, 0, stream>>>(u);
    lamb_norms_kernel<<<chunks, kThreads, 0, stream>>>(u, chunks);
    lamb_weights_kernel<<<chunks, kThreads, 0, stream>>>(u);
  } else {
    with_one_pass(u, [&](auto kind, auto stochastic) {
      update_kernel<kind.value, stochastic.value><<<chunks, kThreads, 0, stream>>>(u);
    });
  }
  DDP_CUDA(cudaGetLastError());
}

__global__ void advance_kernel(StepState* state, std::uint32_t steps) { state->step += steps; }

}  // namespace
}  // namespace cuda::optimizer

namespace optimizer = cuda::optimizer;

void CudaOptimizer::update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) {
  if (slice.chunk_count == 0) return;
  optimizer::check(settings, slice);
  optimizer::with_types(slice, [&](auto weight, auto gradient) {
    optimizer::launch_update(optimizer::make_update<decltype(weight), decltype(gradient)>(settings, slice, step),
                             slice.chunk_count, static_cast<cudaStream_t>(stream.handle));
  });
}

void CudaOptimizer::advance(StepState* state, std::uint32_t steps, Stream stream) {
  optimizer::advance_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream.handle)>>>(state, steps);
  DDP_CUDA(cudaGetLastError());
}

std::unique_ptr<OptimizerOps> OptimizerOps::on_cuda(Device& device) { return std::make_unique<CudaOptimizer>(device); }

}  // namespace ddptrain
