#include "runtime/ops/cuda/optimizers/optimizer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/optimizers/meet.h"
#include "runtime/ops/cuda/optimizers/sum_and_update.cuh"
#include "runtime/ops/cuda/optimizers/tree_sum.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

/// `shown` lies in the host's memory.
__global__ void advance_kernel(StepState* state, std::uint32_t steps, volatile std::uint64_t* shown) {
  *shown = state->step += steps;
}

constexpr std::uint32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads) clip_scale_kernel(const float* squares, std::uint32_t count, float max_norm,
                                                              StepRef step, NonFinite* found, float* scale) {
  __shared__ double shared[kThreads / 32];
  double sum = 0.0;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) sum += squares[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *scale = step_scale(sum, max_norm, step.value(), *found);
}

__global__ void add_unless_left_out_kernel(const NonFinite* found, MetricSums* mine, MetricSums* total) {
  if (found->in_a_row == 0) {
    total->loss += mine->loss;
    total->correct += mine->correct;
    total->samples += mine->samples;
  }
  *mine = {};
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

template <class G>
__global__ void __launch_bounds__(kThreads) chunk_squares_kernel(const UpdateChunk* chunks, const G* gradients,
                                                                 const std::uint32_t* first_square, float* squares) {
  __shared__ float shared[kThreads / 32];
  const UpdateChunk chunk = chunks[blockIdx.x];
  if (first_square[chunk.parameter] == OptimizerOps::kNotCounted) return;
  const G* values = gradients + chunk.begin;
  float sum = 0.0f;
#pragma unroll 4
  for (std::uint32_t i = threadIdx.x; i < chunk.count; i += kThreads) {
    const float value = to_float(values[i]);
    sum += value * value;
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) squares[first_square[chunk.parameter] + chunk.element / kChunkElements] = sum;
}

}  // namespace
}  // namespace cuda

namespace {

namespace optimizer = cuda::optimizer;

/// Rule<kind>::update and sum_and_update of every kind.
template <std::size_t... kKinds>
constexpr auto updates_of(std::index_sequence<kKinds...>) {
  return std::array{&optimizer::Rule<static_cast<OptimizerKind>(kKinds)>::update...};
}
template <std::size_t... kKinds>
constexpr auto sums_and_updates_of(std::index_sequence<kKinds...>) {
  return std::array{&optimizer::Rule<static_cast<OptimizerKind>(kKinds)>::sum_and_update...};
}
template <std::size_t... kKinds>
constexpr auto blocks_of(std::index_sequence<kKinds...>) {
  return std::array{&optimizer::Rule<static_cast<OptimizerKind>(kKinds)>::blocks_per_multiprocessor...};
}
using Kinds = std::make_index_sequence<kOptimizerRules.size()>;
constexpr auto kUpdates = updates_of(Kinds{});
constexpr auto kSumsAndUpdates = sums_and_updates_of(Kinds{});
constexpr auto kBlocksPerMultiprocessor = blocks_of(Kinds{});

constexpr int kMostNcclBlocks = 32;  ///< Of a collective, where NCCL is not told.

class CudaOptimizer final : public OptimizerOps, CudaOps {
 public:
  explicit CudaOptimizer(Device& device)
      : CudaOps(device),
        steps_(device.allocate_pinned(sizeof(std::uint64_t))),
        partials_(device.allocate(2 * cuda::kSquareBlocks * sizeof(float))) {
    device.watch().set_device_steps(static_cast<const std::uint64_t*>(steps_.data()));
  }
  ~CudaOptimizer() override { device_.watch().set_device_steps(nullptr); }

  void advance(StepState* state, std::uint32_t steps, Stream stream) override {
    auto* shown = static_cast<volatile std::uint64_t*>(steps_.data());
    cuda::advance_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream.handle)>>>(state, steps, shown);
    DDP_CUDA(cudaGetLastError());
  }

  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) override {
    if (slice.chunk_count == 0) return;
    rule_for(settings.kind, slice);
    const auto update = kUpdates[static_cast<std::size_t>(settings.kind)];
    update(settings, slice, step, static_cast<cudaStream_t>(stream.handle));
  }

  std::size_t inbox_bytes(OptimizerKind kind, const UpdateSlice& slice, int ranks) const override {
    if (!can_wait_for_peers(kind, slice, ranks)) return 0;
    if (kBlocksPerMultiprocessor[static_cast<std::size_t>(kind)](slice) == 0) return 0;
    return optimizer::inbox_layout(slice, ranks).bytes();
  }

  void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                      StepRef step, Stream stream) override {
    cuda::require(can_wait_for_peers(settings.kind, slice, peers.size), "sum_and_update: not for this slice");
    if (slice.chunk_count == 0) return;
    rule_for(settings.kind, slice);
    const auto update = kSumsAndUpdates[static_cast<std::size_t>(settings.kind)];
    update(settings, slice, peers, step, cuda::most_waiting_blocks(device_.options().ranks),
           static_cast<cudaStream_t>(stream.handle));
  }

  std::size_t meeting_bytes() const override { return cuda::kMeetingBytes; }

  void meet(const PeerInboxes& peers, Stream stream) override {
    cuda::meet(peers, static_cast<cudaStream_t>(stream.handle));
  }

  void sum_of_squares(const Tensor& values, float* sum, Stream stream) override {
    cuda::require(values.dtype == DType::f32 || values.dtype == DType::bf16, "sum_of_squares: values are f32 or bf16");
    auto* queue = static_cast<cudaStream_t>(stream.handle);
    const std::size_t place = queue == CudaOps::stream() ? 0 : cuda::kSquareBlocks;
    float* partials = static_cast<float*>(partials_.data()) + place;
    const std::uint32_t blocks =
        std::clamp<std::uint32_t>(cuda::ceil_div(values.size(), cuda::kThreads * 16), 1, cuda::kSquareBlocks);
    cuda::with_element(values.dtype, [&](auto element) {
      using T = decltype(element);
      constexpr int kWide = 16 / sizeof(T);
      const auto kernel =
          cuda::is_aligned(values.data, 16) ? cuda::squares_kernel<T, kWide> : cuda::squares_kernel<T, 1>;
      kernel<<<blocks, cuda::kThreads, 0, queue>>>(values.as<const T>(), static_cast<std::size_t>(values.size()),
                                                   partials);
    });
    DDP_CUDA(cudaGetLastError());
    cuda::sum_partials_kernel<<<1, cuda::kThreads, 0, queue>>>(partials, blocks, sum);
    DDP_CUDA(cudaGetLastError());
  }

  void clip_scale(const Tensor& squares, float max_norm, StepRef step, NonFinite* found, float* scale,
                  Stream stream) override {
    cuda::require(squares.dtype == DType::f32, "clip_scale: squares are f32");
    cuda::clip_scale_kernel<<<1, cuda::kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
        squares.as<const float>(), static_cast<std::uint32_t>(squares.size()), max_norm, step, found, scale);
    DDP_CUDA(cudaGetLastError());
  }

  void add_unless_left_out(const NonFinite* found, MetricSums* mine, MetricSums* total, Stream stream) override {
    cuda::add_unless_left_out_kernel<<<1, 1, 0, static_cast<cudaStream_t>(stream.handle)>>>(found, mine, total);
    DDP_CUDA(cudaGetLastError());
  }

  void chunk_squares(const UpdateSlice& slice, const std::uint32_t* first_square, float* squares,
                     Stream stream) override {
    if (slice.chunk_count == 0) return;
    cuda::with_element(slice.gradient_type, [&](auto element) {
      cuda::chunk_squares_kernel<<<slice.chunk_count, cuda::kThreads, 0, static_cast<cudaStream_t>(stream.handle)>>>(
          slice.chunks, static_cast<const decltype(element)*>(slice.gradients), first_square, squares);
    });
    DDP_CUDA(cudaGetLastError());
  }

  void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, Stream stream) override {
    cuda::add_nodes(nodes, sum, static_cast<cudaStream_t>(stream.handle));
  }

  void add_tree(const Tensor& leaves, const Tensor& sum, Stream stream) override {
    cuda::add_tree(leaves, sum, static_cast<cudaStream_t>(stream.handle));
  }

 private:
  /// Blocks wait for those of other ranks, and so do NCCL's: all of both must be on the GPU at once. Ours have a
  /// multiprocessor each, NCCL's have those that are left; other kernels come to an end.
  bool can_wait_for_peers(OptimizerKind kind, const UpdateSlice& slice, int ranks) const {
    if (rule_of(kind).whole_parameters || ranks > PeerInboxes::kMaxRanks) return false;
    const int kept = device_.options().communication_multiprocessors > 0 ? 0 : kMostNcclBlocks;
    return static_cast<int>(optimizer::inbox_layout(slice, ranks).blocks) <= multiprocessors() - kept;
  }

  Buffer steps_;     ///< In the host's memory: the step, for the watch.
  Buffer partials_;  ///< Of sum_of_squares, for each of the two streams it may run on.
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cuda(Device& device) { return std::make_unique<CudaOptimizer>(device); }

}  // namespace ddptrain
