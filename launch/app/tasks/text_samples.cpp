#include "launch/app/tasks/text_samples.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "runtime/comm/agreed_signal.h"
#include "runtime/device/queueing.h"

namespace ddptrain {
namespace {

/// Thrown out of a pass on all ranks of the first replica.
struct EndAsked {};

}  // namespace

TextSamples::TextSamples(const Job& job, Trainer& trainer)
    : job_(job),
      trainer_(trainer),
      weights_(*trainer.updates().communication.weights),
      turns_(forward_turns(trainer.arena().units().size())) {
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

std::vector<SampledText> TextSamples::take() {
  Device& device = trainer_.device();
  const Watch::Phase phase(device.watch(), "generation");
  device.finish_unfinished();
  weights_.changed();
  if (model_ != nullptr) return generate();
  give_weights();
  return {};
}

/// With a new generator, because stages pass a tied weight on in its first pass.
std::vector<SampledText> TextSamples::generate() {
  PassHooks hooks = {.before_pass = [this] {
    agree_on_pass(true);
    if (agreed_end_signal(job_.world)) throw EndAsked();
  }};
  if (trainer_.arena().zero() == Zero::weights) {
    hooks.before_unit = [this](std::size_t unit) { weights_.acquire(turns_[unit].unit, turns_[unit].next); };
  }
  TextGenerator generator(*model_, trainer_.stages(), trainer_.device(), std::move(hooks));
  std::vector<SampledText> samples;
  try {
    for (std::size_t i = 0; i < prompts_.size(); ++i) samples.push_back(continued(generator, i));
    agree_on_pass(false);
  } catch (const EndAsked&) {  // on the other replicas, too: see give_weights()
  }
  return samples;
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

/// What the other replicas do meanwhile.
void TextSamples::give_weights() {
  while (agree_on_pass(false) && !agreed_end_signal(job_.world)) {
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
