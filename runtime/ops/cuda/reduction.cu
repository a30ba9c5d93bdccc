#include "runtime/ops/reduction.h"

#include <algorithm>
#include <cmath>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/cuda/tree_sum.h"

namespace ddptrain {

namespace cuda {
namespace {

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
  if (first_square[chunk.parameter] == ReductionOps::kNotCounted) return;
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

/// An inbox of meet() has the newest round of each sender, then this rank's.
constexpr std::size_t kMeetingBytes = (PeerInboxes::kMaxRanks + 1) * sizeof(std::uint32_t);

// In terms of PTX's memory model: the kernels before this one in its stream have ended, so their writes happen before
// the fence; the release of system scope that follows orders them before the round that it stores, and the acquire
// that reads this round orders them before everything after it, the kernels behind this one included. A sender may be a
// round ahead of the reader, never two: it waits for the reader's round in between.

__device__ __forceinline__ void send_round(std::uint32_t* to, std::uint32_t round) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(round) : "memory");
}

__device__ __forceinline__ std::uint32_t received_round(const std::uint32_t* from) {
  std::uint32_t round;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(round) : "l"(from) : "memory");
  return round;
}

/// Thread r meets rank r.
__global__ void meet_kernel(PeerInboxes peers) {
  auto* mine = static_cast<std::uint32_t*>(peers.of_rank[peers.rank]);
  const std::uint32_t round = mine[PeerInboxes::kMaxRanks] + 1;
  const int peer = static_cast<int>(threadIdx.x);
  __syncthreads();
  if (peer != peers.rank) {
    __threadfence_system();
    send_round(static_cast<std::uint32_t*>(peers.of_rank[peer]) + peers.rank, round);
    while (static_cast<std::int32_t>(received_round(mine + peer) - round) < 0) {
    }
  }
  __syncthreads();
  if (peer == peers.rank) mine[PeerInboxes::kMaxRanks] = round;
}

}  // namespace
}  // namespace cuda

namespace {

class CudaReduction final : public ReductionOps, CudaOps {
 public:
  explicit CudaReduction(Device& device)
      : CudaOps(device), partials_(device.allocate(2 * cuda::kSquareBlocks * sizeof(float))) {}

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

  std::size_t meeting_bytes() const override { return cuda::kMeetingBytes; }

  void meet(const PeerInboxes& peers, Stream stream) override {
    cuda::meet_kernel<<<1, peers.size, 0, static_cast<cudaStream_t>(stream.handle)>>>(peers);
    DDP_CUDA(cudaGetLastError());
  }

 private:
  Buffer partials_;  ///< Of sum_of_squares(), for each of the two streams that it may run on.
};

}  // namespace

std::unique_ptr<ReductionOps> ReductionOps::on_cuda(Device& device) { return std::make_unique<CudaReduction>(device); }

}  // namespace ddptrain
