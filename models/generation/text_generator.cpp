#include "models/generation/text_generator.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "runtime/core/error.h"
#include "runtime/device/queueing.h"

namespace ddptrain {
namespace {

/// Above all tokens.
constexpr std::uint32_t kNoToken = std::numeric_limits<std::uint32_t>::max();

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

GeneratedText TextGenerator::run(const GenerationRequest& request, const Show& show) {
  std::vector<std::uint32_t> text = request.prompt;
  DDP_CHECK(!text.empty() && std::ssize(text) + request.max_tokens <= model_.longest_text(),
            "a prompt of {} tokens and {} more, in a text of at most {}", text.size(), request.max_tokens,
            model_.longest_text());
  GeneratedText result;
  std::int64_t done = 0;
  Clock::time_point start = Clock::now();
  for (std::int64_t i = 0; i < request.max_tokens; ++i) {
    const std::optional<std::uint32_t> token = next_token(request, text, done);
    if (!token) {
      result.finite = false;
      break;
    }
    if (i == 0) {
      result.first_seconds = seconds_since(start);
      start = Clock::now();
    }
    result.other_seconds = seconds_since(start);
    done = std::ssize(text);
    text.push_back(*token);
    result.tokens.push_back(*token);
    show(*token);
    if (std::ranges::count(request.end_tokens, *token) > 0) break;
  }
  return result;
}

/// One pass over what is new in the text, through all stages. The last stage chooses the token; none if a logit is not
/// finite.
std::optional<std::uint32_t> TextGenerator::next_token(const GenerationRequest& request,
                                                       const std::vector<std::uint32_t>& text, std::int64_t done) {
  if (hooks_.before_pass) hooks_.before_pass();
  queue_pass(text, done);
  std::uint32_t token = kNoToken;
  if (stages_.is_last()) token = choose_token(request, static_cast<std::uint32_t>(text.size())).value_or(kNoToken);
  if (stages_.ranks != nullptr) stages_.ranks->broadcast(&token, sizeof(token), stages_.count() - 1);
  device_.watch().set_part(static_cast<std::uint32_t>(text.size()), 0);
  return token == kNoToken ? std::nullopt : std::optional(token);
}

void TextGenerator::queue_pass(const std::vector<std::uint32_t>& text, std::int64_t done) {
  const Queueing queueing(device_);
  const std::int64_t pass = passes_++;
  const auto model_of = [&](std::int64_t) -> Model& { return model_; };
  model_.begin_text(text, done);
  if (stages_.index() > 0) pipeline_.exchange({.activations_in = pass}, model_of);
  model_.forward_text(hooks_.before_unit);
  if (!stages_.is_last()) pipeline_.exchange({.activations_out = pass}, model_of);
}

std::optional<std::uint32_t> TextGenerator::choose_token(const GenerationRequest& request, std::uint32_t position) {
  if (request.sampling.temperature <= 0.0) return model_.likeliest_token();
  const std::span<const float> logits = model_.next_logits();
  if (!all_finite(logits)) return std::nullopt;
  return sample_token(logits, request.sampling, request.number, position);
}

}  // namespace ddptrain
