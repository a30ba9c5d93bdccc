#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/decoder/config.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The parameters of a decoder, or of a stage of one, in the order in which the backward pass completes them: the
/// output layer if it has a weight of its own, the final norm, the blocks from the last to block 1, the embeddings,
/// block 0.
struct DecoderParameters {
  /// Consecutive parameters: indices in `specs`.
  struct Range {
    std::size_t first = 0;
    std::size_t count = 0;

    std::size_t end() const { return first + count; }
  };

  std::vector<ParameterSpec> specs;
  Range head;  ///< With the final norm, which is last.
  Range embedding;
  std::vector<Range> blocks;        ///< By layer.
  std::size_t of_later_stages = 0;  ///< How many parameters of the whole model come before `specs`.

  /// The parameters of blocks [first, end), with the embedding if block 0 is among them, and the head if the last block
  /// is. The ranges of what the stage does not have are unspecified.
  DecoderParameters of_stage(std::int64_t first, std::int64_t end) const;
};

/// All parameters, or one rank's slice of them.
DecoderParameters decoder_parameters(const DecoderTable& table, const TensorSlice& slice = {});

}  // namespace ddptrain
