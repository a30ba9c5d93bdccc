#include "runtime/ops/cuda/output_layer.h"

#include <algorithm>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/ops/cuda/loss.h"
#include "runtime/ops/cuda/output_layer_gradient.cuh"
#include "runtime/ops/cuda/output_layer_logits.cuh"
#include "runtime/ops/cuda/tensor_map.h"

namespace ddptrain {

namespace cuda {

namespace {

using namespace output_layer;

constexpr std::int64_t kMostUnits = std::int64_t{1} << 30;
constexpr std::int64_t kLeastRows = 1024;
constexpr std::int64_t kLeastColumns = 4096;

Shares shares_of(const OutputLayer& layer, int tile_rows, int clusters) {
  const auto tiles = static_cast<int>(ceil_div(layer.x.dim(0), tile_rows));
  const auto units = static_cast<int>(layer.weight.dim(0) / kUnit);
  return {tiles, units, std::clamp(clusters, 1, tiles * units)};
}
std::size_t parts(const Shares& shares) { return static_cast<std::size_t>(shares.workers + shares.tiles - 1); }

Problem problem_of(const OutputLayer& layer, int multiprocessors) {
  Problem p{};
  p.logits_shares = shares_of(layer, kLogitsTile, multiprocessors / kCluster);
  p.gradient_shares = shares_of(layer, kGradientTile, multiprocessors / kCluster);
  p.predictions = {layer.batch, static_cast<std::uint32_t>(layer.first_row)};
  p.rows = static_cast<int>(layer.x.dim(0));
  p.vocabulary = static_cast<int>(layer.vocabulary);
  p.gradient_scale = layer.gradient_scale;
  p.logits = layer.dlogits.as<const bf16>();
  return p;
}

/// Lays out a workspace. Returns its size.
std::size_t place(Problem& p, void* workspace) {
  Pieces pieces(workspace);
  p.row_parts = pieces.take<RowPart>(parts(p.logits_shares) * kLogitsTile);
  p.row_gradients = pieces.take<RowGradient>(static_cast<std::size_t>(p.rows));
  p.dx_parts = pieces.take<float>(parts(p.gradient_shares) * kGradientTile * kWidth);
  p.metrics = pieces.take<MetricPartial>(ceil_div(p.rows, kRowsPerBlock));
  return pieces.bytes();
}

template <class Shared, class Maps>
void launch_in_clusters(void (*kernel)(Maps, Problem), const Maps& maps, const Problem& p, const Shares& shares,
                        int threads, cudaStream_t stream) {
  reserve_shared_memory(kernel, sizeof(Shared));
  launch_early(kernel, static_cast<unsigned>(shares.workers * kCluster), threads, sizeof(Shared), stream, maps, p);
}

}  // namespace

bool suits_wgmma_output_layer(const OutputLayer& layer) {
  const std::int64_t rows = layer.x.dim(0), columns = layer.weight.dim(0);
  return multiplies_by_warpgroups() && layer.x.dtype == DType::bf16 && layer.x.dim(1) == kWidth &&
         columns % kUnit == 0 && rows >= kLeastRows && columns >= kLeastColumns &&
         rows * (columns / kUnit) < kMostUnits && layer.gradient_scale > 0.0f &&
         std::max(sizeof(LogitsShared), sizeof(GradientShared)) <= shared_memory_limit() &&
         is_aligned(layer.x.data, 16) && is_aligned(layer.weight.data, 16) && is_aligned(layer.dlogits.data, 16) &&
         is_aligned(layer.dx.data, 16);
}

std::size_t wgmma_output_layer_workspace(const OutputLayer& layer, int multiprocessors) {
  Problem p = problem_of(layer, multiprocessors);
  return place(p, nullptr);
}

LossParts wgmma_output_layer(const OutputLayer& layer, void* workspace, int multiprocessors, cudaStream_t stream) {
  Problem p = problem_of(layer, multiprocessors);
  place(p, workspace);
  const std::int64_t columns = layer.weight.dim(0);
  const auto map_of_logits = [&](int tile_rows) {
    return swizzled_tiles(layer.dlogits.data, p.rows, columns, tile_rows);
  };
  const CUtensorMap weights = swizzled_tiles(layer.weight.data, columns, kWidth, 64);
  const LogitsMaps logits_maps{swizzled_tiles(layer.x.data, p.rows, kWidth, 64), weights, map_of_logits(16)};
  const GradientMaps gradient_maps{map_of_logits(64), weights, map_of_logits(32)};
  launch_in_clusters<LogitsShared>(logits_kernel, logits_maps, p, p.logits_shares, kLogitsThreads, stream);
  const std::uint32_t row_blocks = ceil_div(p.rows, kRowsPerBlock);
  launch_early(rows_kernel, row_blocks, kRowThreads, 0, stream, p);
  launch_in_clusters<GradientShared>(input_gradient_kernel, gradient_maps, p, p.gradient_shares, kGradientThreads,
                                     stream);
  launch_early(sum_parts_kernel, ceil_div(std::int64_t{p.rows} * kWidth, kPack * kSumThreads), kSumThreads, 0, stream,
               p, layer.dx.as<bf16>());
  return {p.metrics, row_blocks};
}

}  // namespace cuda

void CudaLoss::output_layer(const OutputLayer& layer, MetricSums* sums) {
  const std::int64_t rows = layer.x.dim(0);
  if (rows == 0 || !cuda::suits_wgmma_output_layer(layer)) return output_layer_apart(device_, layer, sums);
  expect_tensor(layer.dlogits, "output_layer: dlogits", dtype(), {rows, layer.weight.dim(0)});
  expect_tensor(layer.weight, "output_layer: weight", dtype(), {layer.weight.dim(0), layer.x.dim(1)});
  expect_tensor(layer.dx, "output_layer: dx", dtype(), layer.x.shape);
  cuda::require(layer.vocabulary > 0 && layer.vocabulary <= layer.weight.dim(0),
                "output_layer: the weight has fewer rows than the vocabulary has tokens");
  cuda::require(layer.first_row >= 0 && layer.first_row + rows <= layer.batch.count * layer.batch.source.sequence,
                "output_layer: rows beyond the batch's predictions");
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "output layer and loss");
  void* workspace = scratch().reserve(cuda::wgmma_output_layer_workspace(layer, multiprocessors()), stream());
  const cuda::LossParts loss = cuda::wgmma_output_layer(layer, workspace, multiprocessors(), stream());
  cuda::add_metric_partials(loss.parts, loss.count, static_cast<std::uint32_t>(rows), sums, stream());
}

}  // namespace ddptrain
