#include "models/gpt/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "runtime/core/error.h"
#include "runtime/core/random.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kSampling = 0x53414D50;  // last counter word, as dropout sites are

/// The `count`th largest logit: tokens below it are not drawn.
float threshold(std::vector<float> logits, std::int64_t count) {
  if (count <= 0 || count >= static_cast<std::int64_t>(logits.size())) return -std::numeric_limits<float>::infinity();
  std::nth_element(logits.begin(), logits.begin() + count - 1, logits.end(), std::greater<>());
  return logits[static_cast<std::size_t>(count - 1)];
}

std::size_t draw(const std::vector<float>& logits, const GenerateOptions& options, float uniform) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  if (options.temperature <= 0.0f) return static_cast<std::size_t>(likeliest - logits.begin());
  const float least = threshold(logits, options.top_k);
  std::vector<double> weights;
  double total = 0.0;
  for (const float logit : logits) {
    weights.push_back(logit < least ? 0.0 : std::exp((logit - *likeliest) / options.temperature));
    total += weights.back();
  }
  double left = uniform * total;
  for (std::size_t token = 0; token < weights.size(); ++token) {
    left -= weights[token];
    if (left < 0.0) return token;
  }
  return static_cast<std::size_t>(likeliest - logits.begin());  // the sum was rounded
}

/// One window of the last tokens, in the device's memory.
class Context {
 public:
  Context(Device& device, std::int64_t most)
      : device_(device),
        most_(most),
        tokens_(device.allocate(static_cast<std::size_t>(most + 1) * sizeof(std::uint16_t))),
        segment_(device.allocate(sizeof(TokenSegmentView))) {
    const TokenSegmentView segment{tokens_.data(), 0};
    device.copy_to_device(segment_.data(), &segment, sizeof(segment));
  }

  /// The window is always full, so that it is of one size: what follows the text is not looked at by its last token.
  std::vector<float> logits(LanguageModel& model, const std::vector<std::uint16_t>& text) {
    const std::size_t used = std::min(text.size(), static_cast<std::size_t>(most_));
    std::vector<std::uint16_t> window(text.end() - static_cast<std::ptrdiff_t>(used), text.end());
    window.resize(static_cast<std::size_t>(most_ + 1));
    device_.copy_to_device(tokens_.data(), window.data(), window.size() * sizeof(std::uint16_t));
    TokenBatch batch;
    batch.source = {static_cast<const TokenSegmentView*>(segment_.data()), 1, 1, static_cast<std::uint32_t>(most_), 2};
    batch.order.dataset_size = 1;
    batch.order.shuffle = false;
    batch.count = 1;
    return model.next_token_logits(batch, static_cast<std::int64_t>(used) - 1);
  }

 private:
  Device& device_;
  std::int64_t most_;
  Buffer tokens_;
  Buffer segment_;
};

}  // namespace

std::vector<std::uint16_t> generate(LanguageModel& model, Device& device, std::vector<std::uint16_t> prompt,
                                    const GenerateOptions& options) {
  DDP_CHECK(!prompt.empty(), "an empty prompt");
  Context context(device, options.context);
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const Philox random = philox(static_cast<std::uint32_t>(i), options.sample, 0, kSampling, options.seed);
    const std::vector<float> logits = context.logits(model, prompt);
    prompt.push_back(static_cast<std::uint16_t>(draw(logits, options, uniform01(random.word[0]))));
  }
  return prompt;
}

}  // namespace ddptrain
