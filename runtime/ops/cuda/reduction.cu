#include "runtime/ops/reduction.h"

#include <algorithm>
#include <type_traits>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

__global__ void __launch_bounds__(kThreads) clip_scale_kernel(const float* squares, std::uint32_t count, float max_norm,
                                                              StepRef step, NonFinite* found, float* scale) {
  __shared__ double shared[kThreads / 32];
  double sum = 0.0;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) sum += squares[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x > 0) return;
  *scale = step_scale(sum, max_norm, step.value(), *found);
  step.state->log.note_norm(step.value() + 1, sqrt(sum));
}

__global__ void __launch_bounds__(kThreads)
    log_norm_kernel(const float* squares, std::uint32_t count, StepState* state) {
  __shared__ double shared[kThreads / 32];
  double sum = 0.0;
  for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) sum += squares[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x > 0) return;
  state->log.note_norm(state->step, sqrt(sum));
  state->log.end_pause(global_nanoseconds());
}

__global__ void add_unless_left_out_kernel(StepRef step, MetricSums* mine, MetricSums* total) {
  if (step.state->nonfinite.in_a_row == 0) {
    total->loss += mine->loss;
    total->correct += mine->correct;
    total->samples += mine->samples;
  }
  *mine = {};
  step.note_sums(total);
}

constexpr std::uint32_t kSquareBlocks = 528;  // of a tensor: four for each multiprocessor of an H200
constexpr int kSquareLoads = 4;               // in flight per thread
constexpr std::uint32_t kChunkBlocks = 1056;  // of a slice: as many as an H200 runs at once
constexpr std::size_t kMostInTable = 128;     // tensors or slices of a launch: parameters of a kernel have 4 KiB

template <int V>
__device__ __forceinline__ float sum_of_squares(const float (&value)[V]) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < V; ++k) sum += value[k] * value[k];
  return sum;
}

struct SquareTable {
  struct Entry {
    const void* values;
    std::size_t count;
    float* sum;

    /// Blocks that share the tensor. It alone decides in which order its squares are added.
    __host__ __device__ std::uint32_t blocks() const {
      constexpr std::size_t kOfBlock = kThreads * 16;
      const std::size_t blocks = (count + kOfBlock - 1) / kOfBlock;
      return blocks < 1 ? 1 : blocks < kSquareBlocks ? static_cast<std::uint32_t>(blocks) : kSquareBlocks;
    }
  };
  Entry entries[kMostInTable];
};

/// The squares that this thread adds if `blocks` blocks share the values.
template <int V, class T>
__device__ __forceinline__ float squares_of_thread(const T* values, std::size_t count, std::uint32_t blocks) {
  const std::size_t stride = static_cast<std::size_t>(blocks) * kThreads * V;
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
  return sum;
}

/// Row y of the grid takes entry y. partials: [entry, kSquareBlocks]
template <class T>
__global__ void __launch_bounds__(kThreads) squares_kernel(const __grid_constant__ SquareTable table, float* partials) {
  __shared__ float shared[kThreads / 32];
  const SquareTable::Entry& entry = table.entries[blockIdx.y];
  const std::uint32_t blocks = entry.blocks();
  if (blockIdx.x >= blocks) return;
  constexpr int kWide = 16 / sizeof(T);
  const auto* values = static_cast<const T*>(entry.values);
  const bool aligned = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
  float sum = aligned ? squares_of_thread<kWide>(values, entry.count, blocks)
                      : squares_of_thread<1>(values, entry.count, blocks);
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.y * kSquareBlocks + blockIdx.x] = sum;
}

/// Block x takes entry x.
__global__ void __launch_bounds__(kThreads)
    sum_partials_kernel(const __grid_constant__ SquareTable table, const float* partials) {
  __shared__ double shared[kThreads / 32];
  const SquareTable::Entry& entry = table.entries[blockIdx.x];
  partials += blockIdx.x * kSquareBlocks;
  double sum = 0.0;
  for (std::uint32_t i = threadIdx.x; i < entry.blocks(); i += kThreads) sum += partials[i];
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x == 0) *entry.sum = static_cast<float>(sum);
}

struct ChunkTable {
  struct Entry {
    const UpdateChunk* chunks;
    const void* gradients;
    std::uint32_t count;
    std::uint32_t position;
  };
  Entry entries[kMostInTable];
};

/// Row y of the grid takes the chunks of entry y.
template <class G>
__global__ void __launch_bounds__(kThreads)
    chunk_squares_kernel(const __grid_constant__ ChunkTable table, const std::uint32_t* first_square, float* squares) {
  __shared__ float shared[kThreads / 32];
  const ChunkTable::Entry& entry = table.entries[blockIdx.y];
  for (std::uint32_t c = blockIdx.x; c < entry.count; c += gridDim.x) {
    const UpdateChunk chunk = entry.chunks[c];
    if (first_square[chunk.parameter] == ReductionOps::kNotCounted) continue;
    const G* values = static_cast<const G*>(entry.gradients) + chunk.offset_from(entry.position);
    float sum = 0.0f;
#pragma unroll 4
    for (std::uint32_t i = threadIdx.x; i < chunk.count; i += kThreads) {
      const float value = to_float(values[i]);
      sum += value * value;
    }
    sum = block_sum<kThreads>(sum, shared);
    if (threadIdx.x == 0) squares[first_square[chunk.parameter] + chunk.element / kChunkElements] = sum;
  }
}

/// Calls work(entries, their number) for parts of a list that fit the table of a kernel, in order.
template <class Entry, class Work>
void in_tables(const std::vector<Entry>& entries, Work&& work) {
  for (std::size_t i = 0; i < entries.size(); i += kMostInTable) {
    work(entries.data() + i, std::min(kMostInTable, entries.size() - i));
  }
}

constexpr std::size_t kMostNodes = 17;
constexpr int kMostLevels = 16;

struct Nodes {
  const void* data[kMostNodes];
  bool bf16[kMostNodes];
  int count;
};

template <int V>
__device__ __forceinline__ void load_node(const Nodes& nodes, int node, std::int64_t at, float (&to)[V]) {
  if (nodes.bf16[node]) {
    load<V>(static_cast<const __nv_bfloat16*>(nodes.data[node]) + at, to);
  } else {
    load<V>(static_cast<const float*>(nodes.data[node]) + at, to);
  }
}

template <class S, int V>
__global__ void __launch_bounds__(kThreads) add_nodes_kernel(Nodes nodes, std::int64_t count, S* sum) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (at >= count) return;
  float total[V];
  load_node(nodes, 0, at, total);
  for (int node = 1; node < nodes.count; ++node) {
    float next[V];
    load_node(nodes, node, at, next);
#pragma unroll
    for (int i = 0; i < V; ++i) total[i] = next[i] + total[i];
  }
  store<V>(total, sum + at);
}

/// As a binary counter that counts rows: a level holds a sum until its neighbour is complete. kRows 0: any number.
template <std::uint32_t kRows, class T, class S, int V>
__global__ void __launch_bounds__(kThreads)
    add_tree_kernel(const T* leaves, std::uint32_t any_rows, std::int64_t count, S* sum) {
  const std::int64_t at = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * V;
  if (at >= count) return;
  const std::uint32_t rows = kRows > 0 ? kRows : any_rows;
  float waiting[kMostLevels][V];
  float node[V];
#pragma unroll
  for (std::uint32_t row = 0; row < rows; ++row) {
    load<V>(leaves + row * count + at, node);
#pragma unroll
    for (int level = 0; level < kMostLevels; ++level) {
      const bool completes = (row >> level) % 2 == 1;
#pragma unroll
      for (int i = 0; i < V; ++i) {
        if (completes) {
          node[i] = waiting[level][i] + node[i];
        } else {
          waiting[level][i] = node[i];
        }
      }
      if (!completes) break;
    }
  }
  store<V>(node, sum + at);
}

bool has_fours(const Tensor& tensor, std::int64_t count) {
  return count % 4 == 0 && is_aligned(tensor.data, 4 * size_of(tensor.dtype));
}

/// Calls work(S{}, std::integral_constant: elements of a thread).
template <class Work>
void with_width(DType sum, bool fours, Work&& work) {
  with_element(sum, [&](auto element) {
    if (fours) return work(element, std::integral_constant<int, 4>{});
    work(element, std::integral_constant<int, 1>{});
  });
}

template <class T, class S, int V>
void launch_tree(const Tensor& leaves, const Tensor& sum, cudaStream_t stream) {
  const auto launch = [&](auto kernel) {
    launch_kernel(kernel, ceil_div(sum.size(), kThreads * V), kThreads, 0, stream, leaves.as<T>(), leaves.dim(0),
                  sum.size(), sum.as<S>());
  };
  const std::int64_t rows = leaves.dim(0);
  if (rows == 2) return launch(add_tree_kernel<2, T, S, V>);
  if (rows == 4) return launch(add_tree_kernel<4, T, S, V>);
  if (rows == 8) return launch(add_tree_kernel<8, T, S, V>);
  launch(add_tree_kernel<0, T, S, V>);
}

cudaStream_t queue_of(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

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

class CudaReduction final : public ReductionOps, CudaOps {
 public:
  explicit CudaReduction(Device& device)
      : CudaOps(device), partials_(device.allocate(kMostInTable * kSquareBlocks * sizeof(float))) {}

  void sums_of_squares(const std::vector<SumOfSquares>& sums) override {
    for (const SumOfSquares& sum : sums) {
      check_nodes("sums_of_squares", {sum.values}, sum.values, dtype());
      require(sum.values.dtype == sums[0].values.dtype, "sums_of_squares: values of one type");
    }
    auto* const partials = static_cast<float*>(partials_.data());
    in_tables(sums, [&](const SumOfSquares* first, std::size_t count) {
      SquareTable table{};
      std::uint32_t most_blocks = 1;
      for (std::size_t i = 0; i < count; ++i) {
        table.entries[i] = {first[i].values.data, static_cast<std::size_t>(first[i].values.size()), first[i].sum};
        most_blocks = std::max(most_blocks, table.entries[i].blocks());
      }
      const auto rows = static_cast<std::uint32_t>(count);
      with_element(first->values.dtype, [&]<class T>(T) {
        launch_kernel(squares_kernel<T>, dim3(most_blocks, rows), kThreads, 0, stream(), table, partials);
      });
      launch_kernel(sum_partials_kernel, rows, kThreads, 0, stream(), table, partials);
    });
  }

  void clip_scale(const Tensor& squares, float max_norm, StepRef step, NonFinite* found, float* scale,
                  Stream stream) override {
    require(squares.dtype == DType::f32, "clip_scale: squares are f32");
    launch_kernel(clip_scale_kernel, 1, kThreads, 0, queue_of(stream), squares.as<float>(), squares.size(), max_norm,
                  step, found, scale);
  }

  void log_norm(const Tensor& squares, StepState* state, Stream stream) override {
    require(squares.dtype == DType::f32, "log_norm: squares are f32");
    launch_kernel(log_norm_kernel, 1, kThreads, 0, queue_of(stream), squares.as<float>(), squares.size(), state);
  }

  void add_unless_left_out(StepRef step, MetricSums* mine, MetricSums* total, Stream stream) override {
    launch_kernel(add_unless_left_out_kernel, 1, 1, 0, queue_of(stream), step, mine, total);
  }

  void chunk_squares(const std::vector<UpdateSlice>& slices, const std::uint32_t* first_square,
                     float* squares) override {
    for (const UpdateSlice& slice : slices) {
      require(slice.gradient_type == slices[0].gradient_type, "chunk_squares: gradients of one type");
    }
    in_tables(slices, [&](const UpdateSlice* first, std::size_t count) {
      ChunkTable table{};
      std::uint32_t most_chunks = 1;
      for (std::size_t i = 0; i < count; ++i) {
        table.entries[i] = {first[i].chunks, first[i].gradients, first[i].chunk_count, first[i].position};
        most_chunks = std::max(most_chunks, first[i].chunk_count);
      }
      const dim3 blocks(std::min(most_chunks, kChunkBlocks), static_cast<std::uint32_t>(count));
      with_element(first->gradient_type, [&]<class G>(G) {
        launch_kernel(chunk_squares_kernel<G>, blocks, kThreads, 0, stream(), table, first_square, squares);
      });
    });
  }

  void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, Stream stream) override {
    check_nodes("add_nodes", nodes, sum, dtype());
    require(nodes.size() <= kMostNodes, "add_nodes: at most 17 nodes");
    Nodes all{};
    all.count = static_cast<int>(nodes.size());
    bool fours = has_fours(sum, sum.size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      all.data[i] = nodes[i].data;
      all.bf16[i] = nodes[i].dtype == DType::bf16;
      fours = fours && has_fours(nodes[i], sum.size());
    }
    with_width(sum.dtype, fours, [&]<class S>(S, auto width) {
      launch_kernel(add_nodes_kernel<S, width.value>, ceil_div(sum.size(), kThreads * width.value), kThreads, 0,
                    queue_of(stream), all, sum.size(), sum.as<S>());
    });
  }

  void add_tree(const Tensor& leaves, const Tensor& sum, Stream stream) override {
    check_add_tree(leaves, sum, dtype());
    require(leaves.dim(0) < (1 << kMostLevels), "add_tree: fewer than 65536 rows");
    const bool fours = has_fours(sum, sum.size()) && has_fours(leaves, sum.size());
    with_width(sum.dtype, fours, [&]<class S>(S, auto width) {
      with_element(leaves.dtype, [&]<class T>(T) { launch_tree<T, S, width.value>(leaves, sum, queue_of(stream)); });
    });
  }

  std::size_t meeting_bytes() const override { return kMeetingBytes; }

  void meet(const PeerInboxes& peers, Stream stream) override {
    launch_kernel(meet_kernel, 1, peers.size, 0, queue_of(stream), peers);
  }

 private:
  Buffer partials_;  ///< [kMostInTable, kSquareBlocks] For sums_of_squares().
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::ReductionOps> ddptrain::ReductionOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaReduction>(device);
}
