#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/train/model.h"

namespace ddptrain {

/// A language model, which can also continue texts. It then keeps what later tokens need of earlier ones (keys and
/// values), so a pass computes the new tokens alone. begin_text() takes the place of begin(); units run as in training,
/// and stages exchange the activations of their boundaries. There is no backward pass.
class TextModel : public Model {
 public:
  /// The longest text. 0: this instance was made for training, and has none of what follows.
  virtual std::int64_t longest_text() const = 0;
  /// Begins a pass over the tokens of `text` that follow the first `done`, of which there is at least one. Earlier
  /// passes have computed those before. All ranks of a replica give the same text.
  virtual void begin_text(std::span<const std::uint32_t> text, std::int64_t done) = 0;
  /// The logits [vocabulary] of the token that follows the text. Call it after the pass, on all ranks of the last
  /// stage. Waits.
  virtual std::vector<float> next_logits() = 0;
};

}  // namespace ddptrain
