#include <algorithm>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/optimizers/sum_and_update.cuh"
#include "runtime/ops/cuda/optimizers/update.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda::optimizer {
namespace {

/// `shown` lies in the host's memory.
__global__ void advance_kernel(StepState* state, std::uint32_t steps, volatile std::uint64_t* shown) {
  *shown = state->step += steps;
}

/// One block per chunk. All loads are issued before the first use; five blocks share a
/// multiprocessor, so that a million parameters are one wave.
template <OptimizerKind kKind, bool kStochastic, class W, class G>
__global__ void __launch_bounds__(kThreads, resident_at_most(kThreads, 5)) update_kernel(const Update u) {
  const UpdateChunk chunk = u.slice.chunks[blockIdx.x];
  Elements elements[kRounds];
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round)
    elements[round] = load_elements<rule_of(kKind).slots, G>(u, chunk, round);
  const StepFactors<float> f = u.factors();
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    if (elements[round].count > 0) update_elements<kKind, kStochastic, W>(u, f, chunk, round, elements[round]);
  }
}

// LAMB takes three passes, because its step needs the norms of whole parameters.

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
__global__ void __launch_bounds__(kThreads) norms_kernel(const Update u) {
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

constexpr int kMostNcclBlocks = 32;  ///< Blocks of a collective, if NCCL is not told.

}  // namespace
}  // namespace cuda::optimizer

namespace {

namespace optimizer = cuda::optimizer;

class CudaOptimizer final : public OptimizerOps, CudaOps {
 public:
  explicit CudaOptimizer(Device& device) : CudaOps(device), steps_(device.allocate_pinned(sizeof(std::uint64_t))) {
    device.watch().set_device_steps(static_cast<const std::uint64_t*>(steps_.data()));
  }
  ~CudaOptimizer() override { device_.watch().set_device_steps(nullptr); }

  void advance(StepState* state, std::uint32_t steps, Stream stream) override {
    auto* shown = static_cast<volatile std::uint64_t*>(steps_.data());
    cuda::launch_kernel(optimizer::advance_kernel, 1, 1, 0, static_cast<cudaStream_t>(stream.handle), state, steps,
                        shown);
  }

  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) override {
    if (slice.chunk_count == 0) return;
    check_update(settings.kind, slice, dtype());
    const optimizer::Update u(settings, slice, step);
    auto* queue = static_cast<cudaStream_t>(stream.handle);
    optimizer::with_types(slice, settings.stochastic_rounding, [&]<class W, class G>(W, G, auto stochastic) {
      with_kind(settings.kind, [&](auto kind) {
        if constexpr (kind.value == OptimizerKind::lamb) {
          optimizer::launch_lamb<stochastic.value, W, G>(u, queue);
        } else {
          cuda::launch_kernel(optimizer::update_kernel<kind.value, stochastic.value, W, G>, slice.chunk_count,
                              optimizer::kThreads, 0, queue, u);
        }
      });
    });
  }

  std::size_t inbox_bytes(OptimizerKind kind, const UpdateSlice& slice, int ranks) const override {
    return can_wait_for_peers(kind, slice, ranks) ? optimizer::inbox_layout(slice, ranks).bytes() : 0;
  }

  void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                      StepRef step, Stream stream) override {
    cuda::require(can_wait_for_peers(settings.kind, slice, peers.size), "sum_and_update: not for this slice");
    if (slice.chunk_count == 0) return;
    check_update(settings.kind, slice, dtype());
    const optimizer::Update u(settings, slice, step);
    optimizer::with_types(slice, settings.stochastic_rounding, [&]<class W, class G>(W, G, auto stochastic) {
      with_kind(settings.kind, [&](auto kind) {
        if constexpr (kind.value != OptimizerKind::lamb) {
          optimizer::launch_sum_and_update<kind.value, stochastic.value, W, G>(
              u, peers, optimizer::inbox_layout(slice, peers.size), cuda::most_waiting_blocks(device_.options().ranks),
              static_cast<cudaStream_t>(stream.handle));
        }
      });
    });
  }

 private:
  /// Blocks wait for blocks of other ranks, and so do NCCL's blocks: all of them must be on the GPU at once. A block of
  /// this kernel takes a multiprocessor, NCCL's have the rest; other kernels come to an end.
  bool can_wait_for_peers(OptimizerKind kind, const UpdateSlice& slice, int ranks) const {
    if (rule_of(kind).whole_parameters || ranks > PeerInboxes::kMaxRanks) return false;
    const int kept = device_.options().communication_multiprocessors > 0 ? 0 : optimizer::kMostNcclBlocks;
    return static_cast<int>(optimizer::inbox_layout(slice, ranks).blocks) <= multiprocessors() - kept;
  }

  Buffer steps_;  ///< In the host's memory: the step, for the watch.
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cuda(Device& device) { return std::make_unique<CudaOptimizer>(device); }

}  // namespace ddptrain
