#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "launch/app/job/job.h"
#include "models/generation/text_generator.h"
#include "models/generation/text_model.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/results/sampled_text.h"

namespace ddptrain {

/// Continues the prompts of --sample-every with the weights of a trainer, as --generate does with those of a
/// checkpoint. The first replica generates. The others wait for it, and give their shares of the weights (ZeRO-3).
class TextSamples {
 public:
  /// Both outlive the object. Job::prompts are read.
  TextSamples(const Job& job, Trainer& trainer);

  /// Its memory is what samples take. Null where other ranks generate.
  const TextModel* model() const { return model_.get(); }
  /// The texts, on ranks of the first replica; empty on the others. If a signal asks for the end (agreed_end_signal()),
  /// only those that are complete by then. Collective; waits.
  std::vector<SampledText> take();

 private:
  std::vector<SampledText> generate();
  SampledText continued(TextGenerator& generator, std::size_t number);
  void give_weights();
  bool agree_on_pass(bool follows) const;

  const Job& job_;
  Trainer& trainer_;
  WeightStore& weights_;
  std::vector<UnitTurn> turns_;  ///< Of a pass.
  std::unique_ptr<TextModel> model_;
  std::vector<TokenIds> prompts_;
  bool has_bytes_ = false;
};

}  // namespace ddptrain
