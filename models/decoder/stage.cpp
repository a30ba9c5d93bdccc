#include "models/decoder/stage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/decoder/work.h"
#include "runtime/core/error.h"

namespace ddptrain {

StageBlocks stage_blocks(const DecoderConfig& config, std::int64_t stages, std::int64_t stage) {
  DDP_CHECK(stages <= config.layers, "decoder: {} stages of {} blocks", stages, config.layers);
  const std::vector<LayerWork> work = decoder_work(config, "", Recompute::none).layers;
  const double head_in_blocks = work.back().forward / (work[1].forward + work[2].forward);
  const double even = (static_cast<double>(config.layers) + head_in_blocks) / static_cast<double>(stages);
  const std::int64_t last =
      std::clamp<std::int64_t>(std::llround(even - head_in_blocks), 1, config.layers - stages + 1);
  const std::int64_t others = config.layers - last;
  if (stage + 1 == stages) return {others, config.layers};
  return {others * stage / (stages - 1), others * (stage + 1) / (stages - 1)};
}

std::vector<Unit> Stage::describe_units(const DecoderParameters& parameters, const DecoderTable& table) const {
  std::vector<Unit> units;
  if (has_embedding()) units.push_back({"embedding", parameters.embedding.first, parameters.embedding.count});
  for (std::int64_t layer = first_; layer < end_; ++layer) {
    const DecoderParameters::Range& block = parameters.blocks[static_cast<std::size_t>(layer)];
    units.push_back({fmt::format("{}.{}", table.names.block, layer), block.first, block.count});
  }
  if (!has_head()) return units;
  units.push_back({"head", parameters.head.first, parameters.head.count});
  if (table.config.tied_head && has_embedding()) units.back().also_reads = {parameters.embedding.first};
  return units;
}

Tensor StageMemory::previous_dbias(Device& device, DType dtype, std::int64_t width) {
  if (!previous_dbias_) previous_dbias_ = device.allocate(dtype, {width});
  return previous_dbias_.view(dtype, {width});
}

Tensor StageMemory::tied_weight(Device& device, const Shape& shape) {
  if (!tied_weight_) tied_weight_ = device.allocate(device.dtype(), shape);
  return tied_weight_.view(device.dtype(), shape);
}

}  // namespace ddptrain
