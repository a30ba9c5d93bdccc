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
  const std::uint64_t before = state->step;
  if (state->log.every > 0) {
    steps == 0 ? state->log.start(global_nanoseconds())
               : state->log.note_time(before, before + steps, global_nanoseconds());
  }
  *shown = state->step = before + steps;
}

/// One block per chunk. All loads are issued before the first use; five blocks share a
/// multiprocessor, so that a million parameters are one wave. Rounding at random needs more registers.
template <OptimizerKind kKind, class A>
__global__ void __launch_bounds__(kThreads, resident_at_most(kThreads, A::kRoundsAtRandom ? 4 : 5))
    update_kernel(const Update u) {
  const UpdateChunk chunk = u.slice.chunks[blockIdx.x];
  Elements elements[kRounds];
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round)
    elements[round] = load_elements<rule_of(kKind).slots, A>(u, chunk, round);
  const StepFactors<float> f = u.factors(chunk);
  const auto rounding = rounding_of<A>(u, chunk);
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    if (elements[round].count > 0) update_elements<kKind, A>(u, f, rounding, chunk, round, elements[round]);
  }
}

/// One block per chunk. G: of gradients; S: of the state.
template <class G, class S>
__global__ void __launch_bounds__(kThreads) add_momentum_kernel(const Update u) {
  const UpdateChunk chunk = u.slice.chunks[blockIdx.x];
  if (chunk.of_matrix == 0) return;
  const StepFactors<float> f = u.factors(chunk);
  const auto rounding = rounding_of<Arrays<float, G, S>>(u, chunk);
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const std::uint32_t offset = offset_in_chunk(round);
    Elements e{};
    e.count = count_at(chunk, offset);
    if (e.count == 0) continue;
    const std::size_t at = chunk.offset_from(u.slice.position) + offset;
    G* const gradients = static_cast<G*>(u.slice.gradients) + at;
    S* const moments = static_cast<S*>(u.slice.state[0]) + at;
    load_some(gradients, e.count, e.g);
    load_some(moments, e.count, e.m);
    note_nonfinite(u, chunk.parameter, e);
    if (isnan(f.gradient_scale)) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) ddptrain::add_momentum(f, e.g[i], e.m[i]);
    if constexpr (!std::is_same_v<S, float>) round_at_random<Arrays<float, G, S>, 1>(rounding, chunk, offset, e);
    store_some(e.g, e.count, gradients);
    store_some(e.m, e.count, moments);
  }
}

/// One block per chunk. A: no master weights beside those that are read.
template <class A>
__global__ void __launch_bounds__(kThreads)
    update_squares_kernel(const Update u, const std::uint32_t* first_chunk, UpdateSquares* squares) {
  __shared__ float shared[kThreads / 32];
  const UpdateChunk chunk = u.slice.chunks[blockIdx.x];
  if (chunk.decays == 0) return;
  const StepFactors<float> f = u.factors(chunk);
  const float decay = u.decay_of(chunk);
  float weights = 0.0f;
  float updates = 0.0f;
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    Elements e = load_elements<rule_of(OptimizerKind::lamb).slots, A>(u, chunk, round);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      if (i >= e.count) continue;
      const float update = Rule<OptimizerKind::lamb>::update(f, decay, e.g[i], e.w[i], e.m[i], e.v[i]);
      weights += e.w[i] * e.w[i];
      updates += update * update;
    }
  }
  weights = block_sum<kThreads>(weights, shared);
  updates = block_sum<kThreads>(updates, shared);
  if (threadIdx.x == 0) squares[first_chunk[chunk.parameter] + chunk.element / kChunkElements] = {weights, updates};
}

constexpr std::uint32_t kRatioThreads = 1024;

/// One block per parameter.
__global__ void __launch_bounds__(kRatioThreads)
    trust_ratios_kernel(const UpdateSquares* squares, const std::uint32_t* first_chunk, float* ratios) {
  __shared__ double shared[kRatioThreads / 32];
  const std::uint32_t end = first_chunk[blockIdx.x + 1];
  double weights = 0.0;
  double update = 0.0;
#pragma unroll 4
  for (std::uint32_t chunk = first_chunk[blockIdx.x] + threadIdx.x; chunk < end; chunk += kRatioThreads) {
    weights += squares[chunk].weights;
    update += squares[chunk].update;
  }
  weights = block_sum<kRatioThreads>(weights, shared);
  update = block_sum<kRatioThreads>(update, shared);
  if (threadIdx.x == 0) ratios[blockIdx.x] = trust_ratio(weights, update);
}

constexpr int kMostNcclBlocks = 32;  ///< Blocks of a collective, if NCCL is not told.

int lowest_priority() {
  int lowest = 0;
  int highest = 0;
  DDP_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  return lowest;
}

/// Queues the kernel with a priority that is not the stream's.
template <class... Parameters, class... Arguments>
void launch_with_priority(int priority, void (*kernel)(Parameters...), std::uint32_t blocks, cudaStream_t stream,
                          const Arguments&... arguments) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributePriority;
  attribute.val.priority = priority;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = kThreads;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  DDP_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

}  // namespace
}  // namespace cuda::optimizer

namespace {

namespace optimizer = cuda::optimizer;

class CudaOptimizer final : public OptimizerOps, CudaOps {
 public:
  explicit CudaOptimizer(Device& device)
      : CudaOps(device),
        lowest_priority_(optimizer::lowest_priority()),
        steps_(device.allocate_pinned(sizeof(std::uint64_t))) {
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
    const auto launch = [&]<class A>(A) {
      with_kind(settings.kind, [&](auto kind) {
        const auto kernel = optimizer::update_kernel<kind.value, A>;
        if (slice.yields) {
          optimizer::launch_with_priority(lowest_priority_, kernel, slice.chunk_count, queue, u);
        } else {
          cuda::launch_kernel(kernel, slice.chunk_count, optimizer::kThreads, 0, queue, u);
        }
      });
    };
    slice.rounds_at_random() ? optimizer::with_rounded_types(slice, launch) : optimizer::with_types(slice, launch);
  }

  void add_momentum(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) override {
    if (slice.chunk_count == 0) return;
    check_update(settings.kind, slice, dtype());
    const optimizer::Update u(settings, slice, step);
    cuda::with_element(slice.gradient_type, [&]<class G>(G) {
      cuda::with_element(slice.state_type, [&]<class S>(S) {
        cuda::launch_kernel(optimizer::add_momentum_kernel<G, S>, slice.chunk_count, optimizer::kThreads, 0,
                            static_cast<cudaStream_t>(stream.handle), u);
      });
    });
  }

  void update_squares(const OptimizerSettings& settings, const UpdateSlice& slice, const std::uint32_t* first_chunk,
                      UpdateSquares* squares, StepRef step, Stream stream) override {
    if (slice.chunk_count == 0) return;
    check_update(settings.kind, slice, dtype());
    const optimizer::Update u(settings, slice, step);
    cuda::with_element(slice.masterless ? slice.weight_type : DType::f32, [&]<class W>(W) {
      cuda::with_element(slice.gradient_type, [&]<class G>(G) {
        cuda::with_element(slice.state_type, [&]<class S>(S) {
          cuda::launch_kernel(optimizer::update_squares_kernel<optimizer::Arrays<W, G, S, false>>, slice.chunk_count,
                              optimizer::kThreads, 0, static_cast<cudaStream_t>(stream.handle), u, first_chunk,
                              squares);
        });
      });
    });
  }

  void trust_ratios(const UpdateSquares* squares, const std::uint32_t* first_chunk, const Tensor& ratios,
                    Stream stream) override {
    cuda::require(ratios.dtype == DType::f32, "trust_ratios: ratios are f32");
    cuda::launch_kernel(optimizer::trust_ratios_kernel, ratios.size(), optimizer::kRatioThreads, 0,
                        static_cast<cudaStream_t>(stream.handle), squares, first_chunk, ratios.as<float>());
  }

  std::size_t inbox_bytes(const UpdateSlice& slice, int ranks) const override {
    return can_wait_for_peers(slice, ranks) ? optimizer::inbox_layout(slice, ranks).bytes() : 0;
  }

  void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                      StepRef step, Stream stream) override {
    cuda::require(can_wait_for_peers(slice, peers.size), "sum_and_update: not for this slice");
    if (slice.chunk_count == 0) return;
    check_update(settings.kind, slice, dtype());
    const optimizer::Update u(settings, slice, step);
    optimizer::with_types(slice, [&]<class A>(A) {
      with_kind(settings.kind, [&](auto kind) {
        optimizer::launch_sum_and_update<kind.value, A>(u, peers, optimizer::inbox_layout(slice, peers.size),
                                                        cuda::most_waiting_blocks(device_.options().ranks),
                                                        static_cast<cudaStream_t>(stream.handle));
      });
    });
  }

 private:
  /// Blocks wait for blocks of other ranks, and so do NCCL's blocks: all of them must be on the GPU at once. A block of
  /// this kernel takes a multiprocessor, NCCL's have the rest; other kernels come to an end.
  bool can_wait_for_peers(const UpdateSlice& slice, int ranks) const {
    if (ranks > PeerInboxes::kMaxRanks || slice.rounds_at_random()) return false;
    const int kept = device_.options().comm_ctas > 0 ? 0 : optimizer::kMostNcclBlocks;
    return static_cast<int>(optimizer::inbox_layout(slice, ranks).blocks) <= multiprocessors() - kept;
  }

  int lowest_priority_;
  Buffer steps_;  ///< In the host's memory: the step, for the watch.
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cuda(Device& device) { return std::make_unique<CudaOptimizer>(device); }

}  // namespace ddptrain
