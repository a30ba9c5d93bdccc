#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/text/tokens.h"
#include "models/gpt/gpt_block.h"
#include "models/gpt/shape.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The part of a GPT that a pipeline's stage has: these blocks, with the embedding in front of the first one of all and
/// the head behind the last one of all.
struct GptStage {
  std::int64_t first = 0;
  std::int64_t end = 0;  ///< Behind the last one; 0: all blocks from the first one on.
};

struct GptOptions {
  GptShape shape = {};
  GptStage stage = {};
  LayerPart part = {};         ///< That this rank has of each layer, the embedding and the head.
  std::int64_t max_batch = 0;  ///< Windows per micro-step.
  std::uint64_t seed = 0;      ///< Of dropout.
  float dropout = 0.0f;        ///< Rate, on the embedding and on what each half of a block adds; below 1.
  Recompute recompute = Recompute::none;
  std::int64_t head_rows = 0;  ///< Rows of logits that there are at a time; 0: an eighth of all, 4,096 at least.
  /// Values of a parameter to start from, by name; null: random ones.
  std::function<std::vector<float>(const std::string& name)> pretrained = nullptr;
};

/// Stage `stage` of `stages`, of about the same number of FLOP each, of a GPT of at least as many blocks.
GptStage gpt_stage(const GptShape& shape, std::int64_t stages, std::int64_t stage);

/// GPT-2, or a stage of it. forward() begins the backward pass: it works out the output layer in pieces of
/// options.head_rows and keeps the gradient, not the logits. UsageError where the shape is impossible.
std::unique_ptr<Model> make_gpt(Device& device, const GptOptions& options, ResidentTokens tokens);

}  // namespace ddptrain
