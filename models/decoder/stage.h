#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/decoder/config.h"
#include "models/decoder/parameters.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The blocks of a pipeline stage. The stage with block 0 also has the embedding, and the stage with the model's last
/// block has the head.
struct StageBlocks {
  std::int64_t first = 0;
  std::optional<std::int64_t> end = {};  ///< One more than the last block. Empty: all blocks from `first` on.
};

/// Stage `stage` of `stages`. All stages have about the same number of FLOP. The model has at least as many blocks as
/// stages.
StageBlocks stage_blocks(const DecoderConfig& config, std::int64_t stages, std::int64_t stage);

/// The units of a pipeline stage: the embedding, the blocks, the head, as far as the stage has them.
class Stage {
 public:
  Stage(const DecoderConfig& config, const StageBlocks& blocks)
      : layers_(config.layers), first_(blocks.first), end_(blocks.end.value_or(config.layers)) {}

  std::int64_t first_block() const { return first_; }
  std::int64_t last_block() const { return end_ - 1; }
  std::int64_t blocks() const { return end_ - first_; }
  /// Whether the backward pass of a block of this stage computes activations again, if Recompute asks for it. Those of
  /// the stage's last block are still there.
  bool restores(std::int64_t layer) const { return layer < last_block(); }
  std::int64_t restored_blocks() const { return blocks() - 1; }  ///< The number of blocks that restores() names.
  bool has_embedding() const { return first_ == 0; }
  bool has_head() const { return end_ == layers_; }
  bool is_whole() const { return has_embedding() && has_head(); }

  std::int64_t units() const { return unit_of_block(end_) + (has_head() ? 1 : 0); }
  bool is_embedding(std::size_t unit) const { return has_embedding() && unit == 0; }
  bool is_head(std::size_t unit) const { return has_head() && static_cast<std::int64_t>(unit) == head_unit(); }
  std::int64_t block_of_unit(std::size_t unit) const {
    return first_ + static_cast<std::int64_t>(unit) - (has_embedding() ? 1 : 0);
  }
  std::int64_t unit_of_block(std::int64_t layer) const { return layer - first_ + (has_embedding() ? 1 : 0); }
  std::int64_t head_unit() const { return unit_of_block(end_); }
  std::vector<Unit> describe_units(const DecoderParameters& parameters, const DecoderTable& table) const;

 private:
  std::int64_t layers_;
  std::int64_t first_;
  std::int64_t end_;
};

/// Memory that all siblings of a stage share, because it lasts over the passes of a step.
class StageMemory {
 public:
  /// The gradient of the last bias of the previous stage, which the first norm of this stage computes.
  Tensor previous_dbias(Device& device, DType dtype, std::int64_t width);
  /// A copy of the token embedding, in a stage that does not have it.
  Tensor tied_weight(Device& device, const Shape& shape);
  std::size_t tied_weight_bytes() const { return tied_weight_.bytes(); }

 private:
  Buffer previous_dbias_;
  Buffer tied_weight_;
};

}  // namespace ddptrain
