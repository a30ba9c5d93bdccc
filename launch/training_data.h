#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>

#include "data/dataset.h"
#include "data/tokens.h"
#include "launch/options.h"
#include "launch/pretrained.h"
#include "runtime/comm/world.h"
#include "runtime/train/resident_data.h"

namespace ddptrain {

/// Images for the CNN, tokens for language models.
using TrainingData = std::variant<ImageData, TokenData>;

/// Checks --data and returns what reads it (on this rank of `world`, from any thread). UsageError from either. Text is
/// cut by the tokenizer of `pretrained`, where there is one.
std::function<TrainingData()> find_data(const Options& options, const World& world,
                                        const std::shared_ptr<const Pretrained>& pretrained);

/// What the model of `options` takes from its data: the vocabulary, where --vocab did not say.
void adopt(const TrainingData& data, Options& options);

/// Samples to train on: images, or windows of --seq tokens. UsageError where there is not one window.
std::int64_t train_count(const TrainingData& data, const Options& options);

ResidentSplits make_resident(const TrainingData& data, const Options& options, Device& device);

}  // namespace ddptrain
