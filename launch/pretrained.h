#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/bpe_tokenizer.h"
#include "launch/options.h"
#include "models/gpt/gpt2_folder.h"
#include "runtime/train/parameter_arena.h"

namespace ddptrain {

/// What --init names: weights to start from and, of a folder that has one, the tokenizer.
struct Pretrained {
  Gpt2Weights weights;
  std::optional<BpeTokenizer> tokenizer;

  /// The weights by name; of the positions, the first ones that the model has.
  StartValues start_values() const;
};

/// Null where --init is not given. UsageError where it cannot be read, is for another model or has fewer positions than
/// --seq.
std::shared_ptr<const Pretrained> load_pretrained(const Options& options);

/// The shape of `weights` in place of that of the flags. --seq stays where it was given.
void adopt(const Gpt2Weights& weights, Options& options);

/// Leaves the parameters of `arena` as a model folder of transformers. Collective; rank 0 writes.
void save_pretrained(const std::string& folder, const ParameterArena& arena, const GptShape& shape, const World& world);

/// Text as tokens and back, through the tokenizer where there is one, else bytes (tokens above 255 as numbers).
std::vector<std::uint16_t> to_tokens(const std::string& text, const Pretrained* pretrained);
std::string to_text(const std::vector<std::uint16_t>& tokens, const Pretrained* pretrained);

}  // namespace ddptrain
