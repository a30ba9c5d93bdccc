#pragma once

#include <string>
#include <vector>

#include "models/decoder/config.h"
#include "runtime/train/model.h"

namespace ddptrain {

struct StageBlocks;

/// The FLOP of a decoder for one window, and the points of the backward pass at which gradients are complete. `block`
/// is DecoderNames::block. The division into `stages` pipeline stages decides which blocks Recompute::block computes
/// again: see Stage::restores().
ModelWork decoder_work(const DecoderConfig& config, const std::string& block, Recompute recompute,
                       std::int64_t stages = 1);

/// The sizes of a pass whose messages are counted.
struct SentPass {
  std::int64_t slices = 1;  ///< Ranks that split the layers of the stage.
  std::int64_t batch = 0;   ///< Windows.
  Recompute recompute = Recompute::none;
  Precision precision = Precision::fp32;
};

/// Model::sends() of a rank of a stage; blocks.end is set. The gradient of a bias that goes to the previous stage is
/// not counted.
std::vector<Sent> decoder_sends(const DecoderConfig& config, const StageBlocks& blocks, const SentPass& pass,
                                std::int64_t passes);

}  // namespace ddptrain
