#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "runtime/train/model.h"

namespace ddptrain {

/// A language model, which can also continue texts. It then keeps what later tokens need of earlier ones (keys and
/// values), so a pass computes the new tokens alone. begin_text() and forward_text() take the place of begin() and
/// forward(), and stages exchange the activations of their boundaries in between. There is no backward pass.
class TextModel : public Model {
 public:
  /// The longest text. 0: this instance was made for training, and has none of what follows.
  virtual std::int64_t longest_text() const = 0;
  /// Begins a pass over the tokens of `text` that follow the first `done`, of which there is at least one. Earlier
  /// passes have computed those before. All ranks of a replica give the same text. Waits for earlier passes.
  virtual void begin_text(std::span<const std::uint32_t> text, std::int64_t done) = 0;
  /// Called before each unit of a pass, which then reads the unit's weights.
  using BeforeUnit = std::function<void(std::size_t unit)>;
  /// Queues the pass through all units of this stage. `before_unit` may be null: the weights are there.
  virtual void forward_text(const BeforeUnit& before_unit) = 0;
  /// The logits [vocabulary] of the token that follows the text, on a rank of the last stage. They are valid until the
  /// next pass begins. Waits.
  virtual std::span<const float> next_logits() = 0;
  /// The likeliest of these tokens, and of equal ones the first, without a copy of the logits. None if a logit is not
  /// finite. Waits.
  virtual std::optional<std::uint32_t> likeliest_token() = 0;
};

}  // namespace ddptrain
