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
  int sequence;
  bool forward;  // from groups to kinds; otherwise back
};

/// A block takes a row: to shared memory, and back in the other order. The shared memory holds the row, then cosine and
/// sine of each pair. V neighbouring elements are copied at once; a head is a multiple of V, and if it is turned half
/// of it is one.
template <class T, int V>
__global__ void __launch_bounds__(kThreads) rotate_kernel(T* qkv, const Heads heads, const Rotation rotation) {
  const int columns = heads.columns(), half = heads.head_size / 2, packs_of_head = heads.head_size / V;
  T* const row = reinterpret_cast<T*>(dynamic_shared_memory());
  auto* const angles = reinterpret_cast<float2*>(row + (columns + 7) / 8 * 8);
  const std::size_t number = blockIdx.x;
  qkv += number * columns;
  follow_predecessor();
  for (int c = static_cast<int>(threadIdx.x) * V; c < columns; c += kThreads * V) {
    if constexpr (sizeof(T) * V == 16) {
      start_copy(shared_address(row + c), qkv + c);
    } else {
      for (int i = 0; i < V; ++i) row[c + i] = qkv[c + i];
    }
  }
  end_copies();
  const bool turns = rotation.frequencies != nullptr;
  if (turns) {
    const auto in_window = static_cast<std::int64_t>(number % static_cast<std::size_t>(rotation.sequence));
    const std::int64_t first = rotation.first_position != nullptr ? *rotation.first_position : 0;
    const auto position = static_cast<float>(first + in_window);
    for (int i = threadIdx.x; i < half; i += kThreads) {
      float sine, cosine;
      sincosf(position * rotation.frequencies[i], &sine, &cosine);
      angles[i] = make_float2(cosine, rotation.forward ? sine : -sine);
    }
  }
  await_copies<0>();
  __syncthreads();
  for (int pack = threadIdx.x; pack < heads.all() * packs_of_head; pack += kThreads) {
    const int by_group = pack / packs_of_head, at = pack % packs_of_head * V;
    const HeadOfGroup head(heads, by_group);
    const int by_kind = head.by_kind(heads);
    const T* const from = row + (rotation.forward ? by_group : by_kind) * heads.head_size;
    float value[V];
    load<V>(from + at, value);
    if (turns && !head.is_value(heads)) {
      const bool low = at < half;
      float partner[V];
      load<V>(from + (low ? at + half : at - half), partner);
#pragma unroll
      for (int i = 0; i < V; ++i) {
        const float2 angle = angles[(low ? at : at - half) + i];
        value[i] = value[i] * angle.x + partner[i] * (low ? -angle.y : angle.y);
      }
    }
    store<V>(value, qkv + (rotation.forward ? by_kind : by_group) * heads.head_size + at);
  }
}

}  // namespace ddptrain::cuda::head_kernels
