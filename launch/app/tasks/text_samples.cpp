#include "launch/app/tasks/text_samples.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "runtime/comm/agreed_signal.h"
#include "runtime/device/queueing.h"

namespace ddptrain {

TextSamples::TextSamples(const Job& job, Trainer& trainer)
    : job_(job),
      trainer_(trainer),
      weights_(*trainer.updates().communication.weights),
      turns_(forward_turns(trainer.arena().units().size())),
      texts_(std::max<std::size_t>(job.prompts.size(), 1)) {
  if (trainer.replicas().rank() > 0) return;
  const GenerateOptions& options = job.options().generate;
  const Workload& workload = job.workload();
  model_ = job.workload().make_text_model(trainer.device());
  trainer.replica().lend_weights(*model_);
  prompts_ = sampled_prompts(job.prompts, options, workload, model_->longest_text());
  has_bytes_ = !options.prompt.empty() || workload.tokens_are_bytes();
  if (job.world.rank() == 0 && !has_bytes_) {
    spdlog::info(
        "--sample-every: the samples are token ids. launch/generate-text shows text of a saved model or a checkpoint.");
  }
}

/// With a new generator, because stages pass a tied weight on in its first pass.
std::vector<SampledText> TextSamples::take() {
  Device& device = trainer_.device();
  const Watch::Phase phase(device.watch(), "generation");
  device.finish_unfinished();
  weights_.changed();
  std::optional<TextGenerator> generator;
  if (model_ != nullptr) generator.emplace(*model_, trainer_.stages(), device, hooks());
  std::vector<SampledText> samples;
  for (std::size_t i = 0; i < texts_ && !agreed_end_signal(job_.world); ++i) {
    if (generator) {
      samples.push_back(continued(*generator, i));
      agree_on_pass(false);
    } else {
      give_weights();
    }
  }
  return samples;
}

PassHooks TextSamples::hooks() {
  PassHooks hooks = {.before_pass = [this] { agree_on_pass(true); }};
  if (trainer_.arena().zero() == Zero::weights) {
    hooks.before_unit = [this](std::size_t unit) { weights_.acquire(turns_[unit].unit, turns_[unit].next); };
  }
  return hooks;
}

SampledText TextSamples::continued(TextGenerator& generator, std::size_t number) {
  const GenerateOptions& options = job_.options().generate;
  const Sampling sampling{options.temperature, options.top_k, options.top_p, job_.options().trainer.seed};
  const std::int64_t max_tokens = model_->longest_text() - longest_of(prompts_);
  const GeneratedText made = generator.run(
      {prompts_[number], static_cast<std::uint32_t>(number), max_tokens, sampling, job_.workload().end_tokens()},
      [](std::uint32_t) {});
  SampledText sample = {prompts_[number], made.tokens, std::nullopt, made.finite,
                        made.first_seconds + made.other_seconds};
  if (!has_bytes_) return sample;
  sample.text.emplace();
  for (const TokenIds* part : {&sample.prompt, &sample.tokens}) {
    for (const std::uint32_t token : *part) *sample.text += static_cast<char>(token);
  }
  return sample;
}

/// What the other replicas do while a text is written.
void TextSamples::give_weights() {
  while (agree_on_pass(false)) {
    const Queueing queueing(trainer_.device());
    for (const UnitTurn& turn : turns_) weights_.acquire(turn.unit, turn.next);
  }
}

/// Whether a pass follows, as the first replica says. So no replica waits for longer than a pass takes.
bool TextSamples::agree_on_pass(bool follows) const {
  trainer_.replicas().broadcast(&follows, sizeof(follows), 0);
  return follows;
}

}  // namespace ddptrain
