#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "tests/emulated/attention_reference.h"
#include "tests/emulated/device.h"
#include "tests/emulated/scratch.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/attention/attention_wgmma_128.cuh"

namespace ddptrain::cuda::attention_wgmma_128 {

alignas(1024) inline char memory[sizeof(KeysShared)];
static_assert(sizeof(KeysShared) <= 227 * 1024 && sizeof(QueriesShared) <= sizeof(KeysShared));

struct Case {
  int batch, sequence, heads, key_heads, parts, blocks;
  bool work_late;
  unsigned seed;
};

inline std::string describe(const Case& c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.sequence) + " x " + std::to_string(c.heads) +
         " heads with " + std::to_string(c.key_heads) + " keys in " + std::to_string(c.parts) + " parts on " +
         std::to_string(c.blocks) + " blocks, products " + (c.work_late ? "late" : "at once") + ", seed " +
         std::to_string(c.seed);
}

template <class Kernel>
void launch(int blocks, int threads, const Case& c, const Kernel& kernel) {
  gridDim.x = blocks;
  for (int block = 0; block < blocks; ++block) {
    blockIdx.x = block;
    std::fill_n(memory, sizeof(memory), '\xFF');
    emulated::Block({threads, c.seed, c.work_late, memory}).run(kernel);
  }
}

/// The backward pass, from the output and the statistics of `tensors`.
inline void run(const Case& c, emulated::AttentionReference& tensors) {
  const std::int64_t rows = std::int64_t{c.batch} * c.sequence, width = c.heads * kHead;
  const int columns = (c.heads + 2 * c.key_heads) * kHead, parts_width = c.key_heads * c.parts * kHead;
  const Work work{{c.batch, c.sequence, c.heads, c.key_heads}, c.parts};
  const emulated::Scratch scratch(Workspace(nullptr, work).bytes);
  const Workspace workspace(scratch.data(), work);
  bf16* const dkeys = c.parts > 1 ? static_cast<bf16*>(workspace.parts) : tensors.dqkv.data() + width;
  const Maps maps{emulated::Matrix{tensors.qkv.data(), rows, columns}.map(),
                  emulated::Matrix{tensors.d_output.data(), rows, width}.map()};
  const Problem p{{c.batch, c.sequence, c.heads, c.key_heads},
                  tensors.statistics.data(),
                  workspace.deltas,
                  workspace.dscores,
                  tensors.dqkv.data(),
                  dkeys,
                  dkeys + parts_width,
                  c.parts > 1 ? 2 * parts_width : columns,
                  c.parts,
                  1.0f / std::sqrt(float{kHead})};
  launch(static_cast<int>(rows) * c.heads / kDeltasOfBlock, kDeltaThreads, c,
         [&] { deltas_kernel(tensors.out.data(), tensors.d_output.data(), workspace.deltas, p); });
  launch(c.blocks, kThreadsAndFetching, c, [&] { keys_kernel(maps, p); });
  launch(c.batch * c.heads * p.blocks(), kThreads, c, [&] { queries_kernel(maps, p); });
  if (c.parts == 1) return;
  const auto packs = static_cast<std::uint32_t>(rows * 2 * c.key_heads * kPacksOfHead);
  launch((static_cast<int>(packs) + kSumThreads - 1) / kSumThreads, kSumThreads, c,
         [&] { sum_parts_kernel(p, packs); });
}

}  // namespace ddptrain::cuda::attention_wgmma_128
