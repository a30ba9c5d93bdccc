#pragma once

#include <cstdint>

#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/ptx/async_copy.cuh"
#include "runtime/ops/cuda/ptx/mma.cuh"

/// The kernel of rotate_heads(): the part that tests also run on the CPU (tests/emulated).

namespace ddptrain::cuda::head_kernels {

constexpr int kThreads = 128;

/// Heads of a row of qkv: of queries, of keys, and as many of values.
struct Heads {
  int heads, key_heads, head_size;

  __device__ int queries() const { return heads / key_heads; }  // of a group
  __device__ int all() const { return heads + 2 * key_heads; }
  __device__ int columns() const { return all() * head_size; }
};

/// A head by its number, if they are counted group by group.
struct HeadOfGroup {
  int group, in_group;

  __device__ HeadOfGroup(const Heads& h, int number)
      : group(number / (h.queries() + 2)), in_group(number % (h.queries() + 2)) {}
  __device__ bool is_query(const Heads& h) const { return in_group < h.queries(); }
  __device__ bool is_value(const Heads& h) const { return in_group > h.queries(); }
  /// Its number, if all queries are counted first, then all keys, then all values.
  __device__ int by_kind(const Heads& h) const {
    if (is_query(h)) return group * h.queries() + in_group;
    return h.heads + (is_value(h) ? h.key_heads : 0) + group;
  }
};

struct Rotation {
  const float* frequencies;            // [head_size / 2]; null: nothing is turned
  const std::int64_t* first_position;  // null: 0
  int batch, sequence;
  int samples;   // of a block
  bool forward;  // from groups to kinds; otherwise back
};

/// The rows of a position of a few samples, in qkv and in shared memory.
template <class T>
struct Rows {
  T* of_qkv;  // of the first sample
  T* shared;  // of the first sample; the others follow
  int columns, samples;
  std::size_t of_sample;  // elements from a sample to the next in qkv
};

/// Starts to copy rows to shared memory.
template <int V, class T>
__device__ __forceinline__ void read_rows(const Rows<T>& rows) {
  for (int c = static_cast<int>(threadIdx.x) * V; c < rows.columns; c += kThreads * V) {
    T* to = rows.shared + c;
    const T* from = rows.of_qkv + c;
    for (int sample = 0; sample < rows.samples; ++sample) {
      if constexpr (sizeof(T) * V == 16) {
        start_copy(shared_address(to), from);
      } else {
        for (int i = 0; i < V; ++i) to[i] = from[i];
      }
      to += rows.columns;
      from += rows.of_sample;
    }
  }
  end_copies();
}

__device__ __forceinline__ void find_angles(const Rotation& rotation, int half, float* cosines, float* sines) {
  const std::int64_t first = rotation.first_position != nullptr ? *rotation.first_position : 0;
  const auto position = static_cast<float>(first + blockIdx.x);
  for (int i = threadIdx.x; i < half; i += kThreads) {
    float sine, cosine;
    sincosf(position * rotation.frequencies[i], &sine, &cosine);
    cosines[i] = cosine;
    sines[i] = rotation.forward ? sine : -sine;
  }
}

/// (x, y) = (x cosine - y sine, y cosine + x sine)
template <int V>
__device__ __forceinline__ void turn(const float (&cosine)[V], const float (&sine)[V], float (&x)[V], float (&y)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    const float turned_x = fmaf(x[i], cosine[i], -(y[i] * sine[i]));
    y[i] = fmaf(y[i], cosine[i], x[i] * sine[i]);
    x[i] = turned_x;
  }
}

/// Block (x, y) takes position x of a few samples, whose rows of qkv have the same angles: to shared memory, and back
/// in the other order. The shared memory holds the cosines of a head's angles, their sines, then the rows. V
/// neighbouring elements are copied at once; a head is a multiple of V, and if it is turned half of it is one.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) rotate_kernel(T* qkv, const Heads heads, const Rotation rotation) {
  const int columns = heads.columns(), half = heads.head_size / 2;
  auto* const cosines = reinterpret_cast<float*>(dynamic_shared_memory());
  float* const sines = cosines + half;
  const int first_sample = static_cast<int>(blockIdx.y) * rotation.samples;
  const std::size_t of_sample = static_cast<std::size_t>(rotation.sequence) * columns;
  const Rows<T> rows{qkv + first_sample * of_sample + static_cast<std::size_t>(blockIdx.x) * columns,
                     reinterpret_cast<T*>(sines + half), columns, min(rotation.samples, rotation.batch - first_sample),
                     of_sample};
  follow_predecessor();
  read_rows<V>(rows);
  const bool turns = rotation.frequencies != nullptr;
  if (turns) find_angles(rotation, half, cosines, sines);
  await_copies<0>();
  __syncthreads();
  const int pairs = (heads.head_size / V + 1) / 2;  // of packs of a head; one may be without its second pack
  for (int pair = threadIdx.x; pair < heads.all() * pairs; pair += kThreads) {
    const int by_group = pair / pairs, low = pair % pairs * V, high = low + pairs * V;
    const HeadOfGroup head(heads, by_group);
    const int by_kind = head.by_kind(heads);
    const T* from = rows.shared + (rotation.forward ? by_group : by_kind) * heads.head_size;
    T* to = rows.of_qkv + (rotation.forward ? by_kind : by_group) * heads.head_size;
    const bool turned = turns && !head.is_value(heads), has_high = V > 1 || high < heads.head_size;
    float cosine[V], sine[V];
    if (turned) {
      load<V>(cosines + low, cosine);
      load<V>(sines + low, sine);
    }
    for (int sample = 0; sample < rows.samples; ++sample) {
      float x[V], y[V];
      load<V>(from + low, x);
      if (has_high) load<V>(from + high, y);
      if (turned) turn(cosine, sine, x, y);
      store<V>(x, to + low);
      if (has_high) store<V>(y, to + high);
      from += columns;
      to += of_sample;
    }
  }
}

}  // namespace ddptrain::cuda::head_kernels
