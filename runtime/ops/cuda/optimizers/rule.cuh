#pragma once

#include <algorithm>
#include <type_traits>

#include "runtime/ops/cuda/optimizers/sum_and_update.cuh"
#include "runtime/ops/cuda/optimizers/update.cuh"

/// For the files of rules: each specialises Step, or Passes where one pass over the elements does not do, and
/// instantiates Rule.

namespace ddptrain::cuda::optimizer {

/// One block per chunk. All loads are issued before the first use; five blocks share a
/// multiprocessor, so that a million parameters are one wave.
template <OptimizerKind kKind, bool kStochastic, class W, class G>
__global__ void __launch_bounds__(kThreads, resident_at_most(kThreads, 5)) update_kernel(Update<W, G> u) {
  const UpdateChunk chunk = u.chunks[blockIdx.x];
  Elements elements[kRounds];
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round)
    elements[round] = load_elements<rule_of(kKind).slots>(u, chunk, round);
  const Factors f = factors_of(u);
#pragma unroll
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    if (elements[round].count > 0) update_elements<kKind, kStochastic>(u, f, chunk, round, elements[round]);
  }
}

/// The kernels of an update.
template <OptimizerKind kKind>
struct Passes {
  template <class W, class G>
  static void launch(const Update<W, G>& u, std::uint32_t chunks, cudaStream_t stream) {
    with_rounding(u,
                  [&](auto stochastic) { update_kernel<kKind, stochastic.value><<<chunks, kThreads, 0, stream>>>(u); });
  }
};

template <OptimizerKind kKind>
void Rule<kKind>::update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step,
                         cudaStream_t stream) {
  check(kKind, slice);
  with_types(slice, [&](auto weight, auto gradient) {
    Passes<kKind>::launch(make_update<decltype(weight), decltype(gradient)>(settings, slice, step), slice.chunk_count,
                          stream);
  });
  DDP_CUDA(cudaGetLastError());
}

template <OptimizerKind kKind>
void Rule<kKind>::sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                                 StepRef step, int most_blocks, cudaStream_t stream) {
  check(kKind, slice);
  if constexpr (rule_of(kKind).whole_parameters) {
    require(false, "sum_and_update: a rule of whole parameters takes several passes");
  } else {
    with_types(slice, [&](auto weight, auto gradient) {
      launch_sum_and_update<kKind>(make_update<decltype(weight), decltype(gradient)>(settings, slice, step), peers,
                                   inbox_layout(slice, peers.size), most_blocks, stream);
    });
  }
}

template <OptimizerKind kKind>
int Rule<kKind>::blocks_per_multiprocessor(const UpdateSlice& slice) {
  int blocks = 0;
  if constexpr (!rule_of(kKind).whole_parameters) {
    with_types(slice, [&](auto weight, auto gradient) {
      using W = decltype(weight);
      using G = decltype(gradient);
      blocks = optimizer::blocks_per_multiprocessor<kKind, false, W, G>();
      if constexpr (!std::is_same_v<W, float>) {
        blocks = std::min(blocks, optimizer::blocks_per_multiprocessor<kKind, true, W, G>());
      }
    });
  }
  return blocks;
}

}  // namespace ddptrain::cuda::optimizer
