#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "models/generation/sampling.h"
#include "models/generation/text_model.h"
#include "runtime/device/device.h"
#include "runtime/train/step/pipeline.h"

namespace ddptrain {

/// What to generate.
struct GenerationRequest {
  std::vector<std::uint32_t> prompt;  ///< At least one token.
  std::uint32_t number = 0;           ///< Number of the text, for its random numbers.
  std::int64_t max_tokens = 0;
  Sampling sampling = {};
  std::vector<std::uint32_t> end_tokens = {};  ///< Tokens after which a text ends.
};

struct GeneratedText {
  bool finite = true;                 ///< False: the text ends because a logit of its next token is NaN or infinite.
  std::vector<std::uint32_t> tokens;  ///< Without the prompt.
  double first_seconds = 0.0;         ///< Until the first token is known: one pass over the prompt.
  double other_seconds = 0.0;         ///< From then until the last token is known.
};

/// What is called around passes if other replicas have to take part in them. Null: nothing.
struct PassHooks {
  std::function<void()> before_pass = nullptr;
  TextModel::BeforeUnit before_unit = nullptr;
};

/// Continues texts on the ranks of one replica, which call run() with the same requests.
class TextGenerator {
 public:
  /// The model is bound to its weights, which do not change while the generator lives. All arguments outlive it.
  TextGenerator(TextModel& model, const Stages& stages, Device& device, PassHooks hooks = {})
      : model_(model), stages_(stages), device_(device), hooks_(std::move(hooks)), pipeline_(stages, device) {}

  /// Calls `show` with each token when it is known. UsageError if the prompt is empty, has a token that is not below
  /// the vocabulary, or if prompt and continuation are longer than the longest text. Collective.
  using Show = std::function<void(std::uint32_t token)>;
  GeneratedText run(const GenerationRequest& request, const Show& show);

 private:
  std::optional<std::uint32_t> next_token(const GenerationRequest& request, const std::vector<std::uint32_t>& text,
                                          std::int64_t done);
  void queue_pass(const std::vector<std::uint32_t>& text, std::int64_t done);
  std::optional<std::uint32_t> choose_token(const GenerationRequest& request, std::uint32_t position);

  TextModel& model_;
  Stages stages_;
  Device& device_;
  PassHooks hooks_;
  Pipeline pipeline_;
  std::int64_t passes_ = 0;
};

}  // namespace ddptrain
