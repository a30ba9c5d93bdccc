#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/text/tokens.h"
#include "models/gpt/shape.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The blocks of a pipeline stage. The stage with the first block also has the embedding, and the stage with the last
/// block has the head.
struct GptStage {
  std::int64_t first = 0;
  std::int64_t end = 0;  ///< One more than the last block. 0: all blocks from `first` on.
};

struct GptOptions {
  GptShape shape = {};
  GptStage stage = {};
  LayerPart part = {};         ///< This rank's part of each layer, the embedding and the head.
  std::int64_t max_batch = 0;  ///< Maximum of windows per micro-step.
  std::uint64_t seed = 0;      ///< Seed of dropout.
  float dropout = 0.0f;        ///< Rate of dropout on the embedding and on each branch. Below 1.
  Recompute recompute = Recompute::none;
  std::int64_t head_rows = 0;  ///< Rows of logits in memory at a time. 0: an eighth of all, but at least 4,096.
  /// Returns the initial values of a parameter by its name. Null: random values.
  std::function<std::vector<float>(const std::string& name)> pretrained = nullptr;
};

/// Stage `stage` of `stages`. All stages have about the same number of FLOP. The GPT has at least as many blocks as
/// stages.
GptStage gpt_stage(const GptShape& shape, std::int64_t stages, std::int64_t stage);

/// Makes a GPT-2, or a stage of one. forward() begins the backward pass: it computes the output layer in pieces of
/// options.head_rows rows, and keeps their gradient instead of the logits. UsageError if the shape is impossible.
std::unique_ptr<Model> make_gpt(Device& device, const GptOptions& options, ResidentTokens tokens);

}  // namespace ddptrain
