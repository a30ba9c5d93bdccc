#pragma once

#include <algorithm>

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/optimizers/update.cuh"

// All-reduce and update of a small bucket in one kernel. Every thread writes its gradients into the inboxes of all
// other ranks and waits for theirs: a packet carries the number of its round with its data, so that it tells by
// itself that it has arrived. Odd and even rounds have packets of their own: a rank that sends in round n + 2 has
// received what all others sent in round n + 1, which they did after they had read those of round n.
//
// In terms of PTX's memory model: half a packet, data and round in one 64-bit word, is one relaxed access of system
// scope (st.relaxed.sys, ld.relaxed.sys; of a vector, each element is an access of its own, in no order). Such a word
// is read as it was written, never torn, so that data with the right round is that round's data, and no other access
// needs to be ordered with it: nothing is acquired or released. A word is overwritten two rounds later. The read of
// round n and the store of round n + 1 are in two kernels, and one ends before the other begins, on every GPU; a read
// that returned the value of round n + 2 would have to follow a store that itself follows that read.

namespace ddptrain::cuda::optimizer {

/// Eight bytes of data; each half is written at once, with the round.
using Packet = uint4;

template <class G>
inline constexpr int kPackets = sizeof(G) * kVector / 8;  ///< Packets of a thread.

/// Layout of an inbox: packets [round % 2][sender][block][packet][thread], then the round of each block.
struct InboxLayout {
  std::uint32_t senders, blocks;
  int packets;  ///< Packets of a thread.

  __host__ __device__ std::size_t packet(std::uint32_t parity, std::uint32_t sender, std::uint32_t block) const {
    return ((static_cast<std::size_t>(parity) * senders + sender) * blocks + block) * packets * kThreads;
  }
  __host__ __device__ std::size_t rounds() const { return packet(2, 0, 0) * sizeof(Packet); }  ///< Bytes before them.
  __host__ __device__ std::size_t bytes() const { return rounds() + blocks * sizeof(std::uint32_t); }
};

__device__ __forceinline__ std::uint64_t half(std::uint32_t data, std::uint32_t round) {
  return static_cast<std::uint64_t>(round) << 32 | data;
}

__device__ __forceinline__ void send(Packet* to, uint2 data, std::uint32_t round) {
  asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(half(data.x, round)),
               "l"(half(data.y, round))
               : "memory");
}

__device__ __forceinline__ Packet receive(const Packet* from) {
  std::uint64_t low, high;
  asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
  return {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32), static_cast<std::uint32_t>(high),
          static_cast<std::uint32_t>(high >> 32)};
}

/// A thread's gradients as they are sent.
template <class G>
union Message {
  Pack<G, kVector> gradients;
  uint2 data[kPackets<G>];
};

template <class G>
__device__ __forceinline__ void send_to_all(const PeerInboxes& peers, const Message<G>& mine, std::size_t at,
                                            std::uint32_t round) {
  for (int i = 1; i < peers.size; ++i) {
    const int to = (peers.rank + i) % peers.size;
    Packet* inbox = static_cast<Packet*>(peers.of_rank[to]) + at;
#pragma unroll
    for (int k = 0; k < kPackets<G>; ++k) send(inbox + k * kThreads, mine.data[k], round);
  }
}

/// messages[r] = what rank r has sent, for r != rank. `at`: of rank 0's packets.
template <class G>
__device__ __forceinline__ void receive_from_all(const PeerInboxes& peers, std::size_t at, std::size_t stride,
                                                 std::uint32_t round, Message<G> (&messages)[PeerInboxes::kMaxRanks]) {
  const Packet* inbox = static_cast<const Packet*>(peers.of_rank[peers.rank]) + at;
  bool complete = false;
  while (!complete) {
    complete = true;
#pragma unroll
    for (int from = 0; from < PeerInboxes::kMaxRanks; ++from) {
      if (from >= peers.size || from == peers.rank) continue;
#pragma unroll
      for (int k = 0; k < kPackets<G>; ++k) {
        const Packet packet = receive(inbox + from * stride + k * kThreads);
        messages[from].data[k] = {packet.x, packet.z};
        complete = complete && packet.y == round && packet.w == round;
      }
    }
  }
}

/// The sum of the first `count` of `values`, over a binary tree: neighbours in pairs, these sums in pairs, and so on.
template <int kMost>
__device__ __forceinline__ float tree_sum(float (&values)[kMost], int count) {
#pragma unroll
  for (int stride = 1; stride < kMost; stride *= 2) {
#pragma unroll
    for (int i = 0; i + stride < kMost; i += 2 * stride) {
      if (i + stride < count) values[i] += values[i + stride];
    }
  }
  return values[0];
}

/// e.g = their sums over a tree of ranks, rounded to G.
template <class G>
__device__ __forceinline__ void sum_over_ranks(const PeerInboxes& peers, const InboxLayout& layout, std::uint32_t block,
                                               std::uint32_t round, Elements& e) {
  Message<G> messages[PeerInboxes::kMaxRanks], mine;
#pragma unroll
  for (int i = 0; i < kVector; ++i) mine.gradients.value[i] = from_float<G>(e.g[i]);
  const std::uint32_t parity = round % 2;
  send_to_all(peers, mine, layout.packet(parity, peers.rank, block) + threadIdx.x, round);
  receive_from_all(peers, layout.packet(parity, 0, block) + threadIdx.x, layout.packet(0, 1, 0), round, messages);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    float of_rank[PeerInboxes::kMaxRanks] = {};
#pragma unroll
    for (int from = 0; from < PeerInboxes::kMaxRanks; ++from) {
      if (from >= peers.size) continue;
      of_rank[from] = to_float((from == peers.rank ? mine : messages[from]).gradients.value[i]);
    }
    e.g[i] = to_float(from_float<G>(tree_sum(of_rank, peers.size)));
  }
}

/// A block has one round of elements of a chunk, from `first_chunk` on.
template <OptimizerKind kKind, class A>
__global__ void __launch_bounds__(kThreads)
    sum_and_update_kernel(const Update u, PeerInboxes peers, InboxLayout layout, std::uint32_t first_chunk) {
  const std::uint32_t index = first_chunk + blockIdx.x;
  const std::uint32_t block = blockIdx.y * (layout.blocks / kRounds) + index;
  const UpdateChunk chunk = u.slice.chunks[index];
  auto* rounds = reinterpret_cast<std::uint32_t*>(static_cast<char*>(peers.of_rank[peers.rank]) + layout.rounds());
  // Only the gradients come from kernels that may still run: the last one that wrote the others let none start early.
  const std::uint32_t round = rounds[block] + 1;
  Elements e = load_weights<rule_of(kKind).slots, A>(u, chunk, blockIdx.y);
  const StepFactors<float> f = u.factors(chunk);
  wait_for_predecessor();
  load_gradients<A>(u, chunk, blockIdx.y, e);
  if (e.count > 0) {
    sum_over_ranks<typename A::Gradient>(peers, layout, block, round, e);
    update_elements<kKind, A>(u, f, NoRounding{}, chunk, blockIdx.y, e);
  }
  __syncthreads();
  if (threadIdx.x == 0) rounds[block] = round;
}

/// `most_blocks`: see most_waiting_blocks().
template <OptimizerKind kKind, class A>
void launch_sum_and_update(const Update& u, const PeerInboxes& peers, const InboxLayout& layout, int most_blocks,
                           cudaStream_t stream) {
  const std::uint32_t chunks = layout.blocks / kRounds;
  const std::uint32_t at_once = most_blocks == 0 ? chunks : std::max<std::uint32_t>(1, most_blocks / kRounds);
  for (std::uint32_t first = 0; first < chunks; first += at_once) {
    const dim3 grid(std::min(at_once, chunks - first), kRounds);
    launch_early(sum_and_update_kernel<kKind, A>, grid, kThreads, 0, stream, u, peers, layout, first);
  }
}

inline InboxLayout inbox_layout(const UpdateSlice& slice, int ranks) {
  const auto bytes = static_cast<int>(size_of(slice.gradient_type));
  return {static_cast<std::uint32_t>(ranks), slice.chunk_count * kRounds, bytes * kVector / 8};
}

}  // namespace ddptrain::cuda::optimizer
