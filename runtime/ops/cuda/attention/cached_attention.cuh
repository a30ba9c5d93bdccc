#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/reduce.cuh"

// A thread block has a row of a text, some heads of queries that share a key, and a stretch of the positions that the
// row sees. Its warps take these positions in turn, and keep for each query the running softmax of the scores. A lane
// has neighbouring elements of a head. If there are few rows, several blocks share the positions of a row, and the last
// of them to end adds up what all found, in the order of the positions.
//
// Position and cache do not depend on the operation before, which gives the new rows. So a warp reads its first keys
// and values before that operation ends, and later ones before it needs them.

namespace ddptrain::cuda::cached_attention {

constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kAhead = 4;  // positions whose keys and values a warp reads at a time
constexpr float kLeast = -std::numeric_limits<float>::infinity();

/// Heads of queries of a block, if a lane has so many elements of a head. One row of a text leaves most of a GPU idle,
/// so it has more blocks, with fewer registers: they start while those of the operation before are still there.
constexpr int queries_of(int elements, bool turns) { return turns ? 2 : elements <= 4 ? 8 : 4; }

struct Cached {
  std::uint32_t sequence;
  std::uint32_t capacity;
  std::uint32_t heads;
  std::uint32_t key_heads;
  std::uint32_t head_size;
  std::uint32_t stretch;    ///< Positions of a block.
  std::uint32_t stretches;  ///< Blocks that share the positions of a row.
  float scale;              ///< Of scores, with log2 e.
  const std::int64_t* first_position;
  const float* frequencies;  ///< [head_size / 2]: of rotate_and_attend().

  __device__ std::uint32_t queries() const { return heads / key_heads; }
  __device__ std::size_t columns() const { return static_cast<std::size_t>(heads + 2 * key_heads) * head_size; }
  __device__ std::size_t cache_width() const { return static_cast<std::size_t>(key_heads) * head_size; }
  /// The position of a row of the batch.
  __device__ std::uint32_t position(std::uint32_t row) const {
    return static_cast<std::uint32_t>(*first_position) + row % sequence;
  }
  /// Floats of what a block found: the largest score, the sum of the weights, and the weighted sum of values.
  __host__ __device__ std::size_t partial_size() const { return head_size + 2; }
};

/// This lane's elements of a head. `wide`: the lanes' elements fill the head, and their addresses are aligned.
template <int E, class T>
__device__ __forceinline__ Pack<T, E> pack_of_head(const T* head, std::uint32_t head_size, bool wide) {
  const std::uint32_t first = threadIdx.x % 32 * E;
  if (wide && first < head_size) return *reinterpret_cast<const Pack<T, E>*>(head + first);
  Pack<T, E> pack;
#pragma unroll
  for (int i = 0; i < E; ++i) pack.value[i] = !wide && first + i < head_size ? head[first + i] : from_float<T>(0.0f);
  return pack;
}

template <int E, class T>
__device__ __forceinline__ void unpack(const Pack<T, E>& pack, float (&x)[E]) {
#pragma unroll
  for (int i = 0; i < E; ++i) x[i] = to_float(pack.value[i]);
}

/// Rotary positions of heads whose elements fill the lanes: see GroupedAttentionOps::rotate().
template <int E>
class Turn {
 public:
  __device__ __forceinline__ void set(const float* frequencies, std::uint32_t position) {
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const float angle = static_cast<float>(position) * frequencies[threadIdx.x % kHalf * E + i];
      sincosf(angle, &sine_[i], &cosine_[i]);
      if (threadIdx.x % 32 < kHalf) sine_[i] = -sine_[i];
    }
  }
  /// Called by all lanes.
  template <class T>
  __device__ __forceinline__ void apply(Pack<T, E>& pack) const {
#pragma unroll
    for (int i = 0; i < E; ++i) {
      const float x = to_float(pack.value[i]), partner = __shfl_xor_sync(kAllLanes, x, kHalf);
      pack.value[i] = from_float<T>(x * cosine_[i] + partner * sine_[i]);
    }
  }

 private:
  static constexpr int kHalf = 16;  // lanes that have the first half of a head
  float sine_[E], cosine_[E];
};

/// The softmax of one query over the positions that a warp has seen.
template <int E>
struct Running {
  float largest = kLeast;  ///< Score.
  float weights = 0.0f;    ///< Their sum, relative to the largest.
  float sum[E] = {};       ///< Weighted sum of values.

  __device__ __forceinline__ void add(const float (&score)[kAhead], const float (&value)[kAhead][E]) {
    float next = largest;
#pragma unroll
    for (const float s : score) next = fmaxf(next, s);
    const float kept = exp2_approximate(largest - next);
    largest = next;
    weights *= kept;
#pragma unroll
    for (float& s : sum) s *= kept;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const float weight = exp2_approximate(score[k] - next);
      weights += weight;
#pragma unroll
      for (int i = 0; i < E; ++i) sum[i] += weight * value[k][i];
    }
  }
};

/// What a block reads and writes. kTurns: its text has one row, which is group by group.
template <class T, int E, bool kTurns>
struct BlockPlace {
  static constexpr std::uint32_t kQueries = queries_of(E, kTurns);

  std::uint32_t row, own;    ///< The row in the batch, and its position.
  std::uint32_t before;      ///< Position of the first new row of the text.
  std::uint32_t begin, end;  ///< Positions of this block.
  std::uint32_t first_head;  ///< Of its queries.
  std::uint32_t count;       ///< Of its queries.
  bool keeps;                ///< Whether it writes key and value of its row to the cache.
  bool wide;                 ///< See is_wide().
  const T* query;            ///< The first of its queries.
  const T *new_keys, *new_values;
  std::size_t cache;  ///< Element of the cache with which the text's head begins.

  __device__ BlockPlace(const Cached& a, const T* qkv) : row(blockIdx.x / a.stretches), own(a.position(row)) {
    before = own - row % a.sequence;
    begin = blockIdx.x % a.stretches * a.stretch;
    end = min(own + 1, begin + a.stretch);
    const std::uint32_t text = row / a.sequence, tiles = (a.queries() + kQueries - 1) / kQueries;
    const std::uint32_t group = blockIdx.y / tiles, first_query = blockIdx.y % tiles * kQueries;
    first_head = group * a.queries() + first_query;
    count = min(kQueries, a.queries() - first_query);
    keeps = own < begin + a.stretch && first_query == 0;
    wide = a.head_size % E == 0;
    const std::size_t head = static_cast<std::size_t>(group) * a.head_size;
    if constexpr (kTurns) {
      const T* const of_group = qkv + row * a.columns() + head * (a.queries() + 2);
      query = of_group + static_cast<std::size_t>(first_query) * a.head_size;
      new_keys = of_group + static_cast<std::size_t>(a.queries()) * a.head_size;
      new_values = new_keys + a.head_size;
    } else {
      query = qkv + row * a.columns() + static_cast<std::size_t>(first_head) * a.head_size;
      new_keys = qkv + (static_cast<std::size_t>(text) * a.sequence * a.columns() + a.heads * a.head_size + head);
      new_values = new_keys + a.cache_width();
    }
    cache = static_cast<std::size_t>(text) * a.capacity * a.cache_width() + head;
  }
  /// See pack_of_head().
  __device__ bool is_wide() const { return kTurns || wide; }
  /// Of this thread's warp.
  __device__ std::uint32_t first_position() const { return begin + threadIdx.x / 32 * kAhead; }
};

/// Keys and values of some positions of a warp.
template <class T, int E>
struct Rows {
  Pack<T, E> key[kAhead], value[kAhead];

  /// Those that are in the cache.
  template <bool kTurns>
  __device__ __forceinline__ void load_old(const Cached& a, const BlockPlace<T, E, kTurns>& b, const T* keys,
                                           const T* values, std::uint32_t first) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::uint32_t position = min(first + k, b.end - 1);
      if (position >= b.before) continue;
      const std::size_t at = b.cache + static_cast<std::size_t>(position) * a.cache_width();
      key[k] = pack_of_head<E>(keys + at, a.head_size, b.is_wide());
      value[k] = pack_of_head<E>(values + at, a.head_size, b.is_wide());
    }
  }
  /// The others.
  template <bool kTurns>
  __device__ __forceinline__ void load_new(const Cached& a, const BlockPlace<T, E, kTurns>& b, const Turn<E>& turn,
                                           std::uint32_t first) {
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const std::uint32_t position = min(first + k, b.end - 1);  // the same in all lanes
      if (position < b.before) continue;
      const std::size_t at = static_cast<std::size_t>(position - b.before) * a.columns();
      key[k] = pack_of_head<E>(b.new_keys + at, a.head_size, b.is_wide());
      value[k] = pack_of_head<E>(b.new_values + at, a.head_size, b.is_wide());
      if constexpr (kTurns) turn.apply(key[k]);
    }
  }
};

/// This warp's positions, the first of which `rows` already has. `turn` is for queries and the new key.
template <class T, int E, bool kTurns>
__device__ __forceinline__ void attend_positions(const Cached& a, const BlockPlace<T, E, kTurns>& b, const T* keys,
                                                 const T* values, const Turn<E>& turn, Rows<T, E>& rows,
                                                 Running<E> (&running)[queries_of(E, kTurns)]) {
  constexpr int kQueries = queries_of(E, kTurns);
  float query[kQueries][E];
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    const std::uint32_t head = min(static_cast<std::uint32_t>(j), b.count - 1);
    Pack<T, E> pack = pack_of_head<E>(b.query + static_cast<std::size_t>(head) * a.head_size, a.head_size, b.is_wide());
    if constexpr (kTurns) turn.apply(pack);
    unpack(pack, query[j]);
#pragma unroll
    for (float& q : query[j]) q *= a.scale;
  }
  for (std::uint32_t first = b.first_position(); first < b.end; first += kWarps * kAhead) {
    rows.load_new(a, b, turn, first);
    float key[kAhead][E], value[kAhead][E];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      unpack(rows.key[k], key[k]);
      unpack(rows.value[k], value[k]);
    }
    rows.load_old(a, b, keys, values, first + kWarps * kAhead);
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      if (static_cast<std::uint32_t>(j) >= b.count) break;
      float score[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        float dot = 0.0f;
#pragma unroll
        for (int i = 0; i < E; ++i) dot += query[j][i] * key[k][i];
        score[k] = warp_sum(dot);
        if (first + k >= b.end) score[k] = kLeast;
      }
      running[j].add(score, value);
    }
  }
}

/// What the warps found, in shared memory.
template <int E, int kQueries>
struct Found {
  float largest[kWarps][kQueries];
  float weights[kWarps][kQueries];
  float sums[kWarps][kQueries][32 * E];

  __device__ __forceinline__ void put(const Running<E> (&running)[kQueries]) {
    const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      if (lane == 0) {
        largest[warp][j] = running[j].largest;
        weights[warp][j] = running[j].weights;
      }
#pragma unroll
      for (int i = 0; i < E; ++i) sums[warp][j][lane * E + i] = running[j].sum[i];
    }
  }
};

/// Adds up what the warps found: to `out`, or to `partials` if several blocks share the positions of a row.
template <class T, int E, bool kTurns>
__device__ __forceinline__ void store_found(const Cached& a, const BlockPlace<T, E, kTurns>& b,
                                            const Found<E, queries_of(E, kTurns)>& found, T* out, float* partials) {
  for (std::uint32_t i = threadIdx.x; i < b.count * a.head_size; i += kThreads) {
    const std::uint32_t j = i / a.head_size, element = i % a.head_size;
    float top = kLeast;
    for (int w = 0; w < kWarps; ++w) top = fmaxf(top, found.largest[w][j]);
    float all = 0.0f, sum = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      const float share = exp2_approximate(found.largest[w][j] - top);
      all += share * found.weights[w][j];
      sum += share * found.sums[w][j][element];
    }
    const std::size_t head = static_cast<std::size_t>(b.row) * a.heads + b.first_head + j;
    if (a.stretches == 1) {
      out[head * a.head_size + element] = from_float<T>(sum / all);
      continue;
    }
    float* const partial = partials + (head * a.stretches + blockIdx.x % a.stretches) * a.partial_size();
    if (element == 0) {
      partial[0] = top;
      partial[1] = all;
    }
    partial[2 + element] = sum;
  }
}

/// Writes key and value of the row to the cache. Nobody reads them there before the next pass.
template <class T, int E, bool kTurns>
__device__ __forceinline__ void keep_row(const Cached& a, const BlockPlace<T, E, kTurns>& b, const Turn<E>& turn,
                                         T* keys, T* values) {
  const std::size_t to = b.cache + static_cast<std::size_t>(b.own) * a.cache_width();
  const std::size_t from = static_cast<std::size_t>(b.own - b.before) * a.columns();
  for (std::uint32_t i = threadIdx.x; i < a.head_size; i += kThreads) {
    if constexpr (!kTurns) keys[to + i] = b.new_keys[from + i];
    values[to + i] = b.new_values[from + i];
  }
  if constexpr (kTurns) {
    if (threadIdx.x >= 32) return;
    Pack<T, E> key = pack_of_head<E>(b.new_keys, a.head_size, b.is_wide());
    turn.apply(key);
    *reinterpret_cast<Pack<T, E>*>(keys + to + threadIdx.x * E) = key;
  }
}

/// Whether this block is the last one of `blocks` to call it with this counter, which is 0 before and after. The last
/// one can read what the others wrote, past the L1 cache.
__device__ __forceinline__ bool is_last(std::uint32_t* arrived, std::uint32_t blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1u) + 1 == blocks;
    if (last) *arrived = 0;
  }
  __syncthreads();
  __threadfence();
  return last;
}

/// Adds up `blocks` blocks' partials.
template <class T, int E, bool kTurns>
__device__ __forceinline__ void combine(const Cached& a, const BlockPlace<T, E, kTurns>& b, std::uint32_t blocks,
                                        const float* partials, T* out) {
  for (std::uint32_t i = threadIdx.x; i < b.count * a.head_size; i += kThreads) {
    const std::size_t head = static_cast<std::size_t>(b.row) * a.heads + b.first_head + i / a.head_size;
    const std::uint32_t element = i % a.head_size;
    const float* const first = partials + head * a.stretches * a.partial_size();
    float top = kLeast, all = 0.0f, sum = 0.0f;
#pragma unroll 16
    for (std::uint32_t s = 0; s < blocks; ++s) {
      const float* const partial = first + s * a.partial_size();
      const float largest = __ldcg(partial), next = fmaxf(top, largest);
      const float kept = exp2_approximate(top - next), share = exp2_approximate(largest - next);
      all = all * kept + share * __ldcg(partial + 1);
      sum = sum * kept + share * __ldcg(partial + 2 + element);
      top = next;
    }
    out[head * a.head_size + element] = from_float<T>(sum / all);
  }
}

/// kTurns: of rotate_and_attend(). The head size is then 32 E, and texts have one row each.
template <class T, int E, bool kTurns>
__global__ void __launch_bounds__(kThreads, kTurns && sizeof(T) == 2 ? 3 : 1)
    attend_kernel(const Cached a, const T* qkv, T* keys, T* values, T* out, float* partials, std::uint32_t* arrived) {
  __shared__ Found<E, queries_of(E, kTurns)> found;
  let_successor_start();
  const BlockPlace<T, E, kTurns> b(a, qkv);
  if (b.begin >= b.end) return;
  Turn<E> turn;
  if constexpr (kTurns) turn.set(a.frequencies, b.own);
  Rows<T, E> rows;
  rows.load_old(a, b, keys, values, b.first_position());
  wait_for_predecessor();
  Running<E> running[queries_of(E, kTurns)];
  attend_positions(a, b, keys, values, turn, rows, running);
  found.put(running);
  __syncthreads();
  store_found(a, b, found, out, partials);
  if (a.stretches > 1) {
    const std::uint32_t blocks = b.own / a.stretch + 1;
    if (is_last(arrived + b.row * gridDim.y + blockIdx.y, blocks)) combine(a, b, blocks, partials, out);
  }
  if (b.keeps) keep_row(a, b, turn, keys, values);
}

}  // namespace ddptrain::cuda::cached_attention
