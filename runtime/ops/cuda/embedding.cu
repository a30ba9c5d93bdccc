#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/cuda/reduce.cuh"
#include "runtime/ops/embedding.h"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kWarps = 8;  // of a block
constexpr std::uint32_t kThreads = 32 * kWarps;
constexpr std::uint32_t kChunk = 64;                  // places that are summed together if they all hold one token
constexpr std::uint32_t kPositionThreads = 1u << 16;  // that the sum over the batch keeps busy

/// Where activations of a batch get their factors of dropout from.
struct Places {
  Dropout dropout;
  std::uint32_t sequence, width;
};

/// factor[i] of element `column` + i of row `row`. For V = 8: called by all lanes of a warp, which stand at
/// neighbouring packs of eight.
template <int V>
__device__ __forceinline__ void factors(const Places& p, std::uint32_t row, std::uint32_t column, float (&factor)[V]) {
#pragma unroll
  for (float& f : factor) f = 1.0f;
  if (p.dropout.rate <= 0.0f) return;
  const std::uint32_t feature = row % p.sequence * p.width + column;
  if constexpr (V == 8) {
    eight_factors(p.dropout, feature, row / p.sequence, p.width, factor);
  } else {
    factor[0] = p.dropout.keeps(feature, row / p.sequence) ? p.dropout.scale() : 0.0f;
  }
}

/// sum += the gradient at `row` (below rows) and `column`, past dropout.
template <int V, class T>
__device__ __forceinline__ void add_place(const Places& p, const T* d_output, std::uint32_t row, std::uint32_t column,
                                          float (&sum)[V]) {
  float factor[V], value[V];
  factors(p, row, column, factor);
  if (column >= p.width) return;
  load<V>(d_output + static_cast<std::size_t>(row) * p.width + column, value);
#pragma unroll
  for (int i = 0; i < V; ++i) sum[i] += value[i] * factor[i];
}

/// A warp per place. `positions` may be null.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    embed_kernel(TokenBatch batch, Places places, std::uint32_t rows, std::uint32_t vocabulary, const T* tokens,
                 const T* positions, T* out) {
  const std::uint32_t row = blockIdx.x * kWarps + threadIdx.x / 32;
  const std::uint32_t lane = threadIdx.x % 32;
  if (row >= rows) return;
  const std::uint32_t position = row % places.sequence;
  std::uint32_t token = 0;
  if (lane == 0) {
    token = batch.source.token(BatchRows(batch.order, batch.step)[row / places.sequence], position);
  }
  token = batch.vocabulary_slice.row(__shfl_sync(kAllLanes, token, 0));
  const bool is_here = token < vocabulary;
  for (std::uint32_t first = 0; first < places.width; first += 32 * V) {
    const std::uint32_t column = first + lane * V;
    float factor[V], value[V], other[V] = {};
    factors(places, row, column, factor);
    if (column >= places.width) continue;
    load<V>(tokens + static_cast<std::size_t>(is_here ? token : 0) * places.width + column, value);
    if (positions != nullptr) {
      load<V>(positions + static_cast<std::size_t>(batch.position(position)) * places.width + column, other);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) value[i] = is_here ? (value[i] + other[i]) * factor[i] : 0.0f;
    store<V>(value, out + static_cast<std::size_t>(row) * places.width + column);
  }
}

/// Tokens of other slices of the vocabulary are all listed as the one behind those that are here. `Key` is the smallest
/// unsigned type that holds all tokens of this slice and one more.
template <class Key>
__global__ void __launch_bounds__(kThreads)
    list_kernel(TokenBatch batch, std::uint32_t rows, std::uint32_t vocabulary, Key* tokens, std::uint32_t* places) {
  const std::uint32_t row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= rows) return;
  const std::uint32_t sequence = batch.source.sequence;
  const std::uint32_t window = BatchRows(batch.order, batch.step)[row / sequence];
  const std::uint32_t token = batch.vocabulary_slice.row(batch.source.token(window, row % sequence));
  tokens[row] = static_cast<Key>(min(token, vocabulary));
  places[row] = row;
}

/// The places of a batch, sorted by token, in ascending order for each.
template <class Key>
struct Sorted {
  const Key* tokens;
  const std::uint32_t* places;
  std::uint32_t count;
};

/// begin[v] = first of the sorted places whose token is v or more, for v in [0, vocabulary].
template <class Key>
__global__ void __launch_bounds__(kThreads)
    runs_kernel(Sorted<Key> sorted, std::uint32_t vocabulary, std::uint32_t* begin) {
  const std::uint32_t token = blockIdx.x * kThreads + threadIdx.x;
  if (token > vocabulary) return;
  std::uint32_t low = 0, high = sorted.count;
  while (low < high) {
    const std::uint32_t middle = (low + high) / 2;
    if (sorted.tokens[middle] < token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  begin[token] = low;
}

/// Sums of the chunks of sorted places that hold one token alone; a block per chunk and 32 V columns.
template <class T, int V, class Key>
__global__ void __launch_bounds__(kThreads)
    chunks_kernel(Sorted<Key> sorted, Places places, const T* d_output, float* chunk_sums) {
  __shared__ float shared[kWarps][32 * V];
  const std::uint32_t begin = blockIdx.x * kChunk;
  if (sorted.tokens[begin] != sorted.tokens[begin + kChunk - 1]) return;
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const std::uint32_t first = blockIdx.y * 32 * V;
  float sum[V] = {};
#pragma unroll 4
  for (std::uint32_t i = warp; i < kChunk; i += kWarps) {
    add_place(places, d_output, sorted.places[begin + i], first + lane * V, sum);
  }
#pragma unroll
  for (int i = 0; i < V; ++i) shared[warp][lane * V + i] = sum[i];
  __syncthreads();
  for (std::uint32_t c = threadIdx.x; c < 32 * V && first + c < places.width; c += kThreads) {
    float total = 0.0f;
    for (std::uint32_t w = 0; w < kWarps; ++w) total += shared[w][c];
    chunk_sums[static_cast<std::size_t>(blockIdx.x) * places.width + first + c] = total;
  }
}

/// A warp per token of the vocabulary and 32 V columns: head, places before its first whole chunk, chunks, places after
/// them.
template <class T, class G, int V>
__global__ void __launch_bounds__(kThreads)
    tokens_kernel(const std::uint32_t* sorted_places, Places places, const std::uint32_t* begins, const T* d_output,
                  const float* chunk_sums, const float* head, std::uint32_t vocabulary, bool accumulate, G* dtoken) {
  const std::uint32_t token = blockIdx.x * kWarps + threadIdx.x / 32;
  if (token >= vocabulary) return;
  const std::uint32_t begin = begins[token], end = begins[token + 1];
  const std::uint32_t first_chunk = (begin + kChunk - 1) / kChunk, last_chunk = max(first_chunk, end / kChunk);
  const std::uint32_t column = (blockIdx.y * 32 + threadIdx.x % 32) * V;
  const bool inside = column < places.width;
  const std::size_t at = static_cast<std::size_t>(token) * places.width + column;
  float sum[V] = {};
  if (inside && head != nullptr) load<V>(head + at, sum);
#pragma unroll 4
  for (std::uint32_t i = begin; i < min(end, first_chunk * kChunk); ++i) {
    add_place(places, d_output, sorted_places[i], column, sum);
  }
  const std::uint32_t chunks_end = inside ? last_chunk : first_chunk;
#pragma unroll 4
  for (std::uint32_t chunk = first_chunk; chunk < chunks_end; ++chunk) {
    float value[V];
    load<V>(chunk_sums + static_cast<std::size_t>(chunk) * places.width + column, value);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += value[k];
  }
#pragma unroll 4
  for (std::uint32_t i = max(begin, last_chunk * kChunk); i < end; ++i) {
    add_place(places, d_output, sorted_places[i], column, sum);
  }
  if (!inside) return;
  if (accumulate) {
    float before[V];
    load<V>(dtoken + at, before);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += before[k];
  }
  store<V>(sum, dtoken + at);
}

/// Sums over the windows w = blockIdx.y, + gridDim.y, ... of the batch; [sequence, width] per block row.
template <class T, class G, int V>
__global__ void __launch_bounds__(kThreads)
    positions_kernel(Places places, std::uint32_t windows, const T* d_output, bool accumulate, G* sums) {
  const std::uint32_t feature = (blockIdx.x * kThreads + threadIdx.x) * V;
  const std::uint32_t features = places.sequence * places.width;
  const std::uint32_t position = min(feature / places.width, places.sequence - 1);
  const std::uint32_t column = feature - position * places.width;
  float sum[V] = {};
#pragma unroll 4
  for (std::uint32_t window = blockIdx.y; window < windows; window += gridDim.y) {
    add_place(places, d_output, window * places.sequence + position, column, sum);
  }
  if (feature >= features) return;
  sums += static_cast<std::size_t>(blockIdx.y) * features + feature;
  if (accumulate) {
    float before[V];
    load<V>(sums, before);
#pragma unroll
    for (int k = 0; k < V; ++k) sum[k] += before[k];
  }
  store<V>(sum, sums);
}

template <class Key>
struct SortMemory {
  Key *tokens, *sorted_tokens;
  std::uint32_t *places, *sorted_places, *begins;
  float* chunk_sums;
  float* position_sums;
  void* temporary;
  std::size_t bytes;

  SortMemory(void* memory, std::size_t rows, std::size_t vocabulary, std::size_t width, std::size_t position_sums_size,
             std::size_t temporary_bytes) {
    Pieces pieces(memory);
    tokens = pieces.take<Key>(rows);
    sorted_tokens = pieces.take<Key>(rows);
    places = pieces.take<std::uint32_t>(rows);
    sorted_places = pieces.take<std::uint32_t>(rows);
    begins = pieces.take<std::uint32_t>(vocabulary + 1);
    chunk_sums = pieces.take<float>(rows / kChunk * width);
    position_sums = pieces.take<float>(position_sums_size);
    temporary = pieces.take<char>(temporary_bytes);
    bytes = pieces.bytes();
  }
};

int bits_of(std::uint32_t values) {
  int bits = 1;
  while (bits < 31 && (1u << bits) < values) ++bits;
  return bits;
}

template <class Key>
cudaError_t sort(const SortMemory<Key>& m, std::size_t& temporary_bytes, void* temporary, std::uint32_t rows,
                 std::uint32_t vocabulary, cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(temporary, temporary_bytes, m.tokens, m.sorted_tokens, m.places,
                                         m.sorted_places, static_cast<int>(rows), 0, bits_of(vocabulary), stream);
}

template <class T, class G, int V, class Key>
void sum_tokens(const Sorted<Key>& sorted, const Places& places, const SortMemory<Key>& m, const Tensor& d_output,
                const Tensor& head, const Tensor& dtoken, bool accumulate, cudaStream_t stream) {
  const std::int64_t vocabulary = dtoken.dim(0);
  const std::uint32_t slices = ceil_div(places.width, 32 * V);
  if (const std::uint32_t chunks = sorted.count / kChunk; chunks > 0) {
    launch_kernel(chunks_kernel<T, V, Key>, dim3(chunks, slices), kThreads, 0, stream, sorted, places, d_output.as<T>(),
                  m.chunk_sums);
  }
  launch_kernel(tokens_kernel<T, G, V>, dim3(ceil_div(vocabulary, kWarps), slices), kThreads, 0, stream, sorted.places,
                places, m.begins, d_output.as<T>(), m.chunk_sums, head.as<float>(), vocabulary, accumulate,
                dtoken.as<G>());
}

template <class T, class G, int V>
void sum_positions(const Places& places, std::uint32_t windows, std::uint32_t splits, float* partials,
                   const Tensor& d_output, const Tensor& dposition, bool accumulate, cudaStream_t stream) {
  const std::uint32_t features = places.sequence * places.width;
  const dim3 grid(ceil_div(features, kThreads * V), splits);
  if (splits == 1) {
    launch_kernel(positions_kernel<T, G, V>, grid, kThreads, 0, stream, places, windows, d_output.as<T>(), accumulate,
                  dposition.as<G>());
  } else {
    launch_kernel(positions_kernel<T, float, V>, grid, kThreads, 0, stream, places, windows, d_output.as<T>(), false,
                  partials);
    add_column_partials(partials, splits, features, accumulate, std::array{dposition}, stream);
  }
  const std::size_t used = features * sizeof(G);
  if (!accumulate && dposition.bytes() > used) {
    DDP_CUDA(cudaMemsetAsync(dposition.as<char>() + used, 0, dposition.bytes() - used, stream));
  }
}

template <class... Pointers>
bool in_packs(const Places& places, Pointers... pointers) {
  return places.width % 8 == 0 && (... && is_aligned(pointers, 16));
}

class CudaEmbedding final : public EmbeddingOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void embed_tokens(const TokenBatch& batch, const Tensor& token_embedding, const Tensor& position_embedding,
                    const Dropout& dropout, const Tensor& out) override {
    const EmbeddingShape s = check_embed_tokens(batch, token_embedding, position_embedding, out, dtype());
    if (out.size() == 0) return;
    const std::int64_t rows = s.batch * s.sequence;
    const Places places{dropout, static_cast<std::uint32_t>(s.sequence), static_cast<std::uint32_t>(s.width)};
    const bool wide = in_packs(places, token_embedding.data, position_embedding.data, out.data);
    with_element(dtype(), [&]<class T>(T) {
      launch_kernel(wide ? embed_kernel<T, 8> : embed_kernel<T, 1>, ceil_div(rows, kWarps), kThreads, 0, stream(),
                    batch, places, rows, s.vocabulary, token_embedding.as<T>(), position_embedding.as<T>(),
                    out.as<T>());
    });
  }

  void embed_tokens_backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& d_output,
                             const Tensor& head, const Tensor& dtoken, const Tensor& dposition,
                             bool accumulate) override {
    const EmbeddingShape s = check_embed_tokens_backward(batch, d_output, head, dtoken, dposition, dtype());
    require(d_output.size() > 0, "embed_tokens_backward: an empty batch");
    const std::uint32_t listed = tokens_to_list(batch, s.vocabulary);
    if (listed <= 65536) {
      backward<std::uint16_t>(s, listed, batch, dropout, d_output, head, dtoken, dposition, accumulate);
    } else {
      backward<std::uint32_t>(s, listed, batch, dropout, d_output, head, dtoken, dposition, accumulate);
    }
  }

 private:
  /// The tokens of this slice, and one for all others if there are any.
  static std::uint32_t tokens_to_list(const TokenBatch& batch, std::int64_t vocabulary) {
    return static_cast<std::uint32_t>(vocabulary) + (batch.vocabulary_slice.all > 0 ? 1u : 0u);
  }

  template <class Key>
  void backward(const EmbeddingShape& s, std::uint32_t listed, const TokenBatch& batch, const Dropout& dropout,
                const Tensor& d_output, const Tensor& head, const Tensor& dtoken, const Tensor& dposition,
                bool accumulate) {
    const auto rows = static_cast<std::uint32_t>(s.batch * s.sequence);
    const auto windows = static_cast<std::uint32_t>(s.batch), vocabulary = static_cast<std::uint32_t>(s.vocabulary);
    const Places places{dropout, static_cast<std::uint32_t>(s.sequence), static_cast<std::uint32_t>(s.width)};
    const bool wide = in_packs(places, d_output.data, head.data, dtoken.data, dposition.data);
    const std::uint32_t busy = ceil_div(s.sequence * s.width, wide ? 8 : 1);
    const std::uint32_t splits = std::clamp(kPositionThreads / busy, 1u, windows);
    const std::size_t position_sums =
        dposition && splits > 1 ? std::size_t{splits} * places.sequence * places.width : 0;

    std::size_t temporary_bytes = 0;
    const auto pieces = [&](void* memory) {
      return SortMemory<Key>(memory, rows, vocabulary, places.width, position_sums, temporary_bytes);
    };
    DDP_CUDA(sort(pieces(nullptr), temporary_bytes, nullptr, rows, listed, stream()));
    const SortMemory<Key> m = pieces(scratch().reserve(pieces(nullptr).bytes, stream()));
    launch_kernel(list_kernel<Key>, ceil_div(rows, kThreads), kThreads, 0, stream(), batch, rows, vocabulary, m.tokens,
                  m.places);
    DDP_CUDA(sort(m, temporary_bytes, m.temporary, rows, listed, stream()));
    const Sorted<Key> sorted{m.sorted_tokens, m.sorted_places, rows};
    launch_kernel(runs_kernel<Key>, ceil_div(vocabulary + 1, kThreads), kThreads, 0, stream(), sorted, vocabulary,
                  m.begins);
    with_element(dtype(), [&]<class T>(T) {
      with_element(dtoken.dtype, [&]<class G>(G) {
        const auto tokens = wide ? sum_tokens<T, G, 8, Key> : sum_tokens<T, G, 1, Key>;
        tokens(sorted, places, m, d_output, head, dtoken, accumulate, stream());
        if (!dposition) return;
        const auto positions = wide ? sum_positions<T, G, 8> : sum_positions<T, G, 1>;
        positions(places, windows, splits, m.position_sums, d_output, dposition, accumulate, stream());
      });
    });
  }
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::EmbeddingOps> ddptrain::EmbeddingOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaEmbedding>(device);
}
