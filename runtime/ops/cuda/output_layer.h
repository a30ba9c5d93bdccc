#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "runtime/ops/cuda/metric_partials.h"
#include "runtime/ops/loss.h"

namespace ddptrain::cuda {

/// The output layer in bf16 by warpgroup matrix instructions, for a width of 256 and batches and vocabularies that fill
/// a GPU: the softmax goes with the products, so that no pass over the logits is for it alone. Tensors are aligned to
/// 16 bytes, and the vocabulary is padded to a multiple of 64.
bool suits_wgmma_output_layer(const OutputLayer& layer);
/// Bytes. `multiprocessors`: as many as may work at a time.
std::size_t wgmma_output_layer_workspace(const OutputLayer& layer, int multiprocessors);
/// Loss and hits of so many blocks of rows, in the workspace.
struct LossParts {
  const MetricPartial* parts;
  std::uint32_t count;
};
LossParts wgmma_output_layer(const OutputLayer& layer, void* workspace, int multiprocessors, cudaStream_t stream);

}  // namespace ddptrain::cuda
