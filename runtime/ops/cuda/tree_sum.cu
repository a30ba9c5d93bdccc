#include "runtime/ops/cuda/tree_sum.h"

#include <algorithm>
#include <type_traits>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/reduction.h"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;
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

bool is_node(const Tensor& tensor, std::int64_t size) {
  return (tensor.dtype == DType::f32 || tensor.dtype == DType::bf16) && tensor.size() == size;
}

bool in_fours(const Tensor& tensor, std::int64_t count) {
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
  const auto rows = static_cast<std::uint32_t>(leaves.dim(0));
  const auto launch = [&](auto kernel) {
    kernel<<<ceil_div(sum.size(), kThreads * V), kThreads, 0, stream>>>(leaves.as<const T>(), rows, sum.size(),
                                                                        sum.as<S>());
  };
  if (rows == 2) return launch(add_tree_kernel<2, T, S, V>);
  if (rows == 4) return launch(add_tree_kernel<4, T, S, V>);
  if (rows == 8) return launch(add_tree_kernel<8, T, S, V>);
  launch(add_tree_kernel<0, T, S, V>);
}

}  // namespace

void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, cudaStream_t stream) {
  require(!nodes.empty() && nodes.size() <= kMostNodes, "add_nodes: 1 to 17 nodes");
  require(is_node(sum, sum.size()), "add_nodes: sums are f32 or bf16");
  Nodes all{};
  all.count = static_cast<int>(nodes.size());
  bool fours = in_fours(sum, sum.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    require(is_node(nodes[i], sum.size()), "add_nodes: nodes are f32 or bf16, of the size of their sum");
    all.data[i] = nodes[i].data;
    all.bf16[i] = nodes[i].dtype == DType::bf16;
    fours = fours && in_fours(nodes[i], sum.size());
  }
  with_width(sum.dtype, fours, [&](auto element, auto width) {
    using S = decltype(element);
    add_nodes_kernel<S, width.value>
        <<<ceil_div(sum.size(), kThreads * width.value), kThreads, 0, stream>>>(all, sum.size(), sum.as<S>());
  });
  DDP_CUDA(cudaGetLastError());
}

void add_tree(const Tensor& leaves, const Tensor& sum, cudaStream_t stream) {
  require_tree(leaves);
  require(is_node(leaves, leaves.dim(0) * sum.size()), "add_tree: rows are f32 or bf16, of the size of their sum");
  require(is_node(sum, sum.size()), "add_tree: sums are f32 or bf16");
  require(leaves.dim(0) < (1 << kMostLevels), "add_tree: fewer than 65536 rows");
  const bool fours = in_fours(sum, sum.size()) && in_fours(leaves, sum.size());
  with_width(sum.dtype, fours, [&](auto element, auto width) {
    with_element(leaves.dtype,
                 [&](auto leaf) { launch_tree<decltype(leaf), decltype(element), width.value>(leaves, sum, stream); });
  });
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda
