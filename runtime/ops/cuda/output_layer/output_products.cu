#include "runtime/ops/cuda/output_layer/output_products.h"

#include <algorithm>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/output_layer/gradient_product.cuh"
#include "runtime/ops/cuda/output_layer/logits_product.cuh"
#include "runtime/ops/cuda/output_layer/rows.cuh"
#include "runtime/ops/cuda/ptx/tensor_map.h"

namespace ddptrain::cuda {

namespace {

using bf16 = __nv_bfloat16;

constexpr std::int64_t kMostLogits = std::int64_t{1} << 33;  // kernels number eights of them by 32 bits

std::int64_t tiles_of(const OutputRows& rows) { return ceil_div(rows.logits.dim(1), tile_product::kColumns); }

gradient_product::Shares shares_of(const OutputRows& rows, int multiprocessors) {
  gradient_product::Shares shares{};
  shares.tiles = static_cast<int>(ceil_div(rows.x.dim(0), gradient_product::kTileRows));
  shares.units = static_cast<int>(ceil_div(rows.logits.dim(1), gradient_product::kUnit));
  const std::int64_t clusters = std::max(1, multiprocessors / tile_product::kCluster);
  shares.workers = static_cast<int>(std::min(clusters, shares.all()));
  return shares;
}

output_rows::OfTiles of_tiles(const OutputRows& rows, const SoftmaxPart* parts) {
  return {.parts = parts,
          .logits = rows.logits.as<bf16>(),
          .tiles = static_cast<int>(tiles_of(rows)),
          .columns_of_tile = tile_product::kColumns,
          .rows = static_cast<int>(rows.logits.dim(0)),
          .columns = static_cast<int>(rows.logits.dim(1)),
          .vocabulary = static_cast<int>(rows.vocabulary)};
}

SliceTargets targets_of(const OutputRows& rows) { return {{rows.batch, static_cast<std::uint32_t>(rows.first_row)}}; }

}  // namespace

bool suits_output_products(const OutputRows& rows, const Tensor& d_x) {
  const std::int64_t width = rows.x.dim(1), columns = rows.logits.dim(1), count = rows.x.dim(0);
  const auto suits = [](const Tensor& tensor) { return tensor.dtype == DType::bf16 && is_aligned(tensor.data, 16); };
  return multiplies_by_warpgroups() && width > 0 && width % tile_product::kDepth == 0 && columns % 8 == 0 &&
         columns * count < kMostLogits && is_aligned(d_x.data, 16) && suits(rows.x) && suits(rows.weight) &&
         suits(rows.logits) &&
         std::max(sizeof(tile_product::Shared), sizeof(gradient_product::Memory)) <= shared_memory_limit();
}

OutputWorkspace::OutputWorkspace(const OutputRows& rows, int multiprocessors, void* memory) {
  const auto count = static_cast<std::size_t>(rows.x.dim(0));
  const auto sums = static_cast<std::size_t>(shares_of(rows, multiprocessors).parts()) * gradient_product::kTileRows;
  blocks_ = ceil_div(rows.x.dim(0), output_rows::kRowsOfBlock);
  Pieces pieces(memory);
  parts_ = pieces.take<SoftmaxPart>(static_cast<std::size_t>(tiles_of(rows)) * count);
  gradients_ = pieces.take<RowGradient>(count);
  metrics_ = pieces.take<MetricPartial>(blocks_);
  sums_ = pieces.take<float>(sums * tile_product::kColumns);
  bytes_ = pieces.bytes();
}

void OutputProducts::logits(FinishingWarps warps, int clusters) const {
  using namespace logits_product;
  const std::int64_t count = rows_.x.dim(0), width = rows_.x.dim(1), columns = rows_.logits.dim(1);
  const Maps maps{swizzled_tiles(rows_.x.data, count, width, kRows),
                  swizzled_tiles(rows_.weight.data, columns, width, kColumns / kCluster)};
  Problem p{.logits = rows_.logits.as<bf16>(),
            .parts = workspace_.parts_,
            .rows = static_cast<int>(count),
            .columns = static_cast<int>(columns),
            .vocabulary = static_cast<int>(rows_.vocabulary),
            .tiles = {.depth = static_cast<int>(width),
                      .columns = static_cast<int>(tiles_of(rows_)),
                      .pairs = static_cast<int>(ceil_div(count, kCluster * kRows))}};
  p.tiles.count = p.tiles.columns * p.tiles.pairs;
  const auto launch = [&]<int kFinishers>() {
    launch_clusters(logits_product_kernel<kFinishers>, std::min(p.tiles.count, clusters), kCluster,
                    Roles<kFinishers>::kThreads, sizeof(Shared), stream_, maps, p);
  };
  if (warps == FinishingWarps::three) return launch.template operator()<3>();
  launch.template operator()<7>();
}

void OutputProducts::statistics(const Tensor& statistics) const {
  launch_early(output_rows::statistics_kernel, workspace_.blocks_, output_rows::kThreads, 0, stream_,
               of_tiles(rows_, workspace_.parts_), targets_of(rows_), statistics.as<output_rows::Statistics>());
}

template <class Source>
void OutputProducts::loss_of(const Source& source, float gradient_scale, MetricSums* sums) const {
  RowGradient* const gradients = gradient_scale != 0.0f ? workspace_.gradients_ : nullptr;
  launch_early(output_rows::rows_kernel<Source>, workspace_.blocks_, output_rows::kThreads, 0, stream_, source,
               targets_of(rows_), gradient_scale, gradients, workspace_.metrics_);
  add_metric_partials(workspace_.metrics_, workspace_.blocks_, rows_.logits.dim(0), rows_.batch.step, sums, stream_);
}

void OutputProducts::loss(float gradient_scale, MetricSums* sums) const {
  loss_of(of_tiles(rows_, workspace_.parts_), gradient_scale, sums);
}

void OutputProducts::loss(const Tensor& statistics, float gradient_scale, MetricSums* sums) const {
  const output_rows::OfSlices source{statistics.as<float>(), static_cast<int>(statistics.dim(0)),
                                     static_cast<int>(rows_.logits.dim(0)), static_cast<int>(rows_.vocabulary)};
  loss_of(source, gradient_scale, sums);
}

void OutputProducts::input_gradient(const Tensor& d_x) const {
  using namespace gradient_product;
  const std::int64_t columns = rows_.logits.dim(1), width = rows_.x.dim(1);
  const Problem p{.logits = rows_.logits.as<bf16>(),
                  .gradients = workspace_.gradients_,
                  .parts = workspace_.sums_,
                  .rows = static_cast<int>(rows_.x.dim(0)),
                  .columns = static_cast<int>(columns),
                  .vocabulary = static_cast<int>(rows_.vocabulary),
                  .width = static_cast<int>(std::min(width, kGradientColumns)),
                  .shares = shares_of(rows_, multiprocessors_)};
  const Maps maps{swizzled_tiles(p.logits, p.rows, columns, kRows),
                  swizzled_tiles(rows_.weight.data, columns, width, kUnit)};
  launch_clusters(gradient_product_kernel, p.shares.workers, kCluster, Role::kThreads, sizeof(Memory), stream_, maps,
                  p);
  const std::int64_t threads = std::int64_t{p.rows} * p.width / kSumColumns;
  launch_early(sum_parts_kernel, ceil_div(threads, kSumThreads), kSumThreads, 0, stream_, p, d_x.as<bf16>(),
               static_cast<int>(width));
}

}  // namespace ddptrain::cuda
