#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <map>
#include <set>

#include "runtime/core/error.h"
#include "runtime/ops/meta_device.h"
#include "tests/models/gpt2/gpt_runs.h"
#include "tests/support/says.h"

namespace ddptrain::tests {
namespace {

constexpr Gpt2Shape kTiny{3, 12, 3, 20, 6, 11};  // layers, width, heads, feed-forward, sequence, vocabulary
constexpr float kScale = 1.0f / (kBatch * 6);

/// Large weights everywhere, so that no part of the model goes unseen.
void randomise(ModelRun& run) {
  for (std::size_t i = 0; i < run.weights().size(); ++i) {
    Values values = random_values(run.weights()[i].size(), static_cast<std::uint32_t>(900 + i), -0.5, 0.5);
    const ParameterSpec& spec = run.model().parameters()[i];
    if (spec.shape.size() == 1 && spec.initial.scale == 1.0f) {
      for (double& value : values) value += 1.0;
    }
    assign(run.weights()[i], values);
  }
}

class GptTest : public ::testing::Test {
 protected:
  /// With windows of `sequence` tokens.
  ModelRun make_run(const DecoderOptions& options, std::uint32_t sequence = 6) {
    ModelRun run(*device_, DType::f64, [&](Bench& bench) {
      const TokenBatch data = random_tokens(bench, kBatch, sequence, kTiny.vocabulary, 3);
      return bind_gpt(*device_, options, data, data);
    });
    randomise(run);
    return run;
  }
  static void expect_close(const Gradients& found, const Gradients& expected, double tolerance) {
    for (const auto& [name, values] : found) EXPECT_LE(relative_error(values, expected.at(name)), tolerance) << name;
  }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64, {}, true, 2});
};

TEST_F(GptTest, CountsTheWorkOfASample) {
  const auto gpt = make_decoder(*device_, make_options(kTiny), {});
  EXPECT_EQ(gpt->predictions_per_sample(), 6);
  EXPECT_STREQ(gpt->sample_unit(), "tokens");
  EXPECT_DOUBLE_EQ(gpt->flops_per_sample(),
                   6.0 * (6.0 * static_cast<double>(element_count(gpt2_parameters(kTiny))) + 12.0 * 3 * 12 * 6));
}

TEST_F(GptTest, ParametersAreThoseOfGpt2) {
  const std::vector<ParameterSpec> specs = gpt2_parameters(kTiny);
  EXPECT_EQ(specs.front().name, "ln_f.weight");
  EXPECT_EQ(specs.back().name, "h.0.ln_1.bias");
  for (const ParameterSpec& spec : specs) {
    const bool norm = spec.name.find("ln_") != std::string::npos;
    const bool bias = spec.name.find("bias") != std::string::npos;
    EXPECT_EQ(spec.decays, spec.shape.size() == 2) << spec.name;
    EXPECT_EQ(spec.initial.kind == InitialValue::Kind::constant, norm || bias) << spec.name;
    const double scale = bias                                            ? 0.0
                         : norm                                          ? 1.0
                         : spec.name.find("c_proj") != std::string::npos ? 0.02 / std::sqrt(6.0)
                                                                         : 0.02;
    EXPECT_FLOAT_EQ(spec.initial.scale, static_cast<float>(scale)) << spec.name;
    EXPECT_EQ(spec.padded_rows, spec.name == "wte.weight" ? 128 : 0) << spec.name;
  }
}

/// ddpbench step times forward by it: the output layer's backward pass, which goes with the loss, is not forward.
TEST_F(GptTest, ForwardWithoutAGradientBeginsNoBackwardPass) {
  ModelRun run = make_run(make_options(kTiny));
  const auto timed = [&](float gradient_scale) {
    const auto timeline = device_->make_timeline();
    MetricSums sums;
    device_->record(*timeline, [&] { sums = run.forward(run.slice(), gradient_scale); });
    std::set<std::string> names;
    for (const TimelineSpan& span : timeline->spans()) names.insert(span.name);
    return std::pair{names, sums.loss};
  };
  const auto [training, loss] = timed(kScale);
  const auto [forward, same_loss] = timed(0.0f);
  EXPECT_EQ(training.count("d logits"), 1u);
  EXPECT_EQ(forward.count("d logits"), 0u);
  EXPECT_EQ(forward.count("logits"), 1u);
  EXPECT_EQ(loss, same_loss);
}

TEST_F(GptTest, IsAModel) {
  expect_a_model([&] { return make_run(make_options(kTiny)); });
  for (const Gpt2Shape& shape : {kTiny, Gpt2Shape{1, 12, 3, 20, 6, 11}}) {
    for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::selective, Recompute::block}) {
      expect_a_model([&] { return make_run(make_options(shape, 0.25f, recompute)); });
    }
  }
}

/// More rows than a norm takes at a time, and sequences of several blocks of queries, the last one in part.
TEST_F(GptTest, GradientsOfLongSequencesAreThoseOfTheLoss) {
  constexpr std::int64_t kSequence = 131;
  ModelRun run = make_run(make_options({1, 12, 3, 20, kSequence, 11}), kSequence);
  expect_gradients_of_the_loss(run, 1.0f / (kBatch * kSequence));
}

TEST_F(GptTest, SaysWhatAStageSendsItsNeighbours) {
  const auto bytes = [](const std::vector<Tensor>& tensors) {
    std::size_t all = 0;
    for (const Tensor& tensor : tensors) all += tensor ? tensor.bytes() : 0;
    return static_cast<std::int64_t>(all);
  };
  for (const StageBlocks stage : {StageBlocks{0, 1}, StageBlocks{1, 2}, StageBlocks{2, 3}}) {
    DecoderOptions options = make_options(kTiny, 0.25f);  // with dropout, no gradient of a bias goes along
    options.blocks = stage;
    ModelRun run = make_run(options);
    run.model().begin({run.slice()});
    const StageBoundary previous = run.model().previous_boundary();
    const StageBoundary next = run.model().next_boundary();
    for (const std::int64_t passes : {1, 3}) {
      std::map<std::string, std::int64_t> sent;
      for (const Sent& each : run.model().sends(passes)) sent[each.when] = each.bytes;
      const std::int64_t weight = bytes({next.tied_weight}), gradient = bytes({previous.tied_gradient});
      EXPECT_EQ(sent["forward"], passes * bytes(next.activations) + weight) << stage.first;
      EXPECT_EQ(sent["backward"], passes * (bytes(previous.gradients) + gradient)) << stage.first;
    }
  }
}

TEST_F(GptTest, WorkIsThatOfThePaLMCountButForSmallParameters) {
  const auto meta = make_meta_device({Precision::fp32}, DeviceKind::cpu);
  const auto gpt = make_decoder(*meta, make_options({4, 512, 8, 2048, 256, 30000}), {});
  double flop = 0.0;
  for (const LayerWork& layer : gpt->work().layers) flop += layer.forward + layer.backward;
  EXPECT_NEAR(flop / gpt->flops_per_sample(), 1.0, 0.01);
}

TEST_F(GptTest, RecomputedGradientsAreTheSameBits) {
  constexpr Gpt2Shape kShape{4, 40, 2, 56, 70, 50};
  for (const Precision precision : {Precision::fp32, Precision::fp64}) {
    const auto device = make_cpu_device({precision, {}, true, 2});
    for (const float dropout : {0.0f, 0.1f}) {
      const auto gradients = [&](Recompute recompute) {
        ModelRun run(*device, device->dtype(), [&](Bench& bench) {
          const TokenBatch data = random_tokens(bench, kBatch, 70, 50);
          return bind_gpt(*device, make_options(kShape, dropout, recompute), data, data);
        });
        randomise(run);
        run.forward(run.slice(), 0.01f);
        return run.backward(false);
      };
      const Gradients kept = gradients(Recompute::none);
      EXPECT_EQ(gradients(Recompute::gelu), kept);
      EXPECT_EQ(gradients(Recompute::selective), kept);
      EXPECT_EQ(gradients(Recompute::block), kept);
    }
  }
}

/// Logits of the padding are 0, and would count as exp(0) each.
TEST_F(GptTest, PaddingHasNoPartInTheLoss) {
  ModelRun run = make_run(make_options(kTiny));
  for (const Tensor& weight : run.weights()) assign(weight, Values(static_cast<std::size_t>(weight.size()), 0.0));
  const MetricSums sums = run.evaluate(run.slice());
  EXPECT_EQ(sums.samples, 24u);
  EXPECT_NEAR(sums.loss, 24 * std::log(11.0), 1e-12);
  EXPECT_NEAR(run.forward(run.slice(), kScale).loss, 24 * std::log(11.0), 1e-12);
}

TEST_F(GptTest, NothingIsWrittenBehindTheEmbedding) {
  ModelRun run = make_run(make_options(kTiny));
  run.forward(run.slice(), kScale);
  const Gradients expected = run.backward(false);
  std::vector<Tensor> gradients = run.poisoned_gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const ParameterSpec& spec = run.model().parameters()[i];
    if (spec.padded_rows > 0) gradients[i].data = run.bench().poisoned({spec.padded_size()}).data;
  }
  run.model().bind({run.weights(), gradients});
  run.forward(run.slice(), kScale);
  run_backward(run.model(), false, [](std::size_t) {});
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const ParameterSpec& spec = run.model().parameters()[i];
    EXPECT_EQ(run.bench().take(gradients[i]), expected.at(spec.name)) << spec.name;
    for (std::int64_t k = spec.size(); k < spec.padded_size(); ++k) {
      ASSERT_TRUE(std::isnan(gradients[i].as<double>()[k])) << spec.name << " " << k;
    }
  }
}

/// Blocks that add nothing but their dropped-out biases, whose gradients differ by their masks alone.
TEST_F(GptTest, EveryDropoutHasMasksOfItsOwn) {
  ModelRun run = make_run(make_options(kTiny, 0.5f));
  const std::vector<ParameterSpec>& specs = run.model().parameters();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].name.rfind("h.", 0) != 0) continue;
    assign(run.weights()[i], Values(static_cast<std::size_t>(specs[i].size()), specs[i].shape.size() == 2 ? 0.0 : 1.0));
  }
  run.forward(run.slice(), kScale);
  std::set<Values> different;
  std::size_t count = 0;
  for (const auto& [name, gradient] : run.backward(false)) {
    if (name.find("c_proj.bias") == std::string::npos) continue;
    different.insert(gradient);
    ++count;
  }
  EXPECT_EQ(count, 6u);
  EXPECT_EQ(different.size(), count);
}

TEST_F(GptTest, OutputLayerInPieces) {
  for (const std::int64_t head_rows : {1, 7, 12, 100}) {
    DecoderOptions options = make_options(kTiny);
    ModelRun whole = make_run(options);
    options.head_rows = head_rows;
    ModelRun pieces = make_run(options);
    const MetricSums sums = whole.forward(whole.slice(), kScale);
    const MetricSums found = pieces.forward(pieces.slice(), kScale);
    EXPECT_NEAR(found.loss, sums.loss, 1e-12 * sums.loss);
    EXPECT_EQ(found.correct, sums.correct);
    EXPECT_EQ(found.samples, 24u);
    expect_close(pieces.backward(false), whole.backward(false), 1e-12);
    EXPECT_NEAR(pieces.evaluate(pieces.slice()).loss, sums.loss, 1e-12 * sums.loss);
  }
}

TEST_F(GptTest, ShortWindowsLeaveTheLastPositionsAlone) {
  Gpt2Shape longer = kTiny;
  longer.sequence = 9;
  ModelRun expected = make_run(make_options(kTiny));
  ModelRun run = make_run(make_options(longer));
  for (std::size_t i = 0; i < run.weights().size(); ++i) {
    assign(run.weights()[i], expected.bench().take(expected.weights()[i]));  // positions: the first six
  }
  expected.forward(expected.slice(), kScale);
  run.forward(run.slice(), kScale);
  Gradients first = expected.backward(false);
  first.at("wpe.weight").resize(9 * 12, 0.0);
  EXPECT_EQ(run.backward(false), first);
  run.forward(run.slice(), kScale);
  for (auto& [name, values] : first) {
    for (double& value : values) value *= 2.0;
  }
  expect_close(run.backward(true), first, 1e-12);
}

TEST_F(GptTest, EvaluationHasNoDropoutAndTakesPartOfABatch) {
  ModelRun with = make_run(make_options(kTiny, 0.25f));
  ModelRun without = make_run(make_options(kTiny));
  const Slice whole = with.slice();
  const double loss = with.evaluate(whole).loss;
  EXPECT_EQ(loss, without.forward(without.slice(), kScale).loss);
  EXPECT_NE(loss, with.forward(whole, kScale).loss);
  Slice part = whole;
  part.count = 3;
  double sum = with.evaluate(part).loss;
  part.count = 1;
  part.order.first += 3;
  const MetricSums last = with.evaluate(part);
  EXPECT_EQ(last.samples, 6u);
  EXPECT_NEAR(sum + last.loss, loss, 1e-12 * loss);
}

TEST(Gpt2ShapeTest, ImpossibleShapesAreRefusedInTheNamesOfThoseWhoGaveThem) {
  const SizeNames names = {"x.json: ", "n_layer", "n_embd", "n_head", "n_inner", "n_positions", "vocab_size"};
  check_config(gpt2_table(kTiny).config, names);
  for (const auto& [message, shape] : {std::pair{"x.json: n_layer 0", Gpt2Shape{0, 12, 3, 20, 6, 11}},
                                       {"n_embd -1", {3, -1, 3, 20, 6, 11}},
                                       {"n_head 0", {3, 12, 0, 20, 6, 11}},
                                       {"n_head 5: give a number that divides n_embd 12", {3, 12, 5, 20, 6, 11}},
                                       {"n_inner 0", {3, 12, 3, 0, 6, 11}},
                                       {"n_positions 0", {3, 12, 3, 20, 0, 11}},
                                       {"vocab_size 0", {3, 12, 3, 20, 6, 0}},
                                       {"vocab_size 16777217", {3, 12, 3, 20, 6, 16777217}}}) {
    EXPECT_CONTAINS(error_message([&, &shape = shape] { check_config(gpt2_table(shape).config, names); }), message);
  }
}

TEST_F(GptTest, RefusesWhatItCannotBe) {
  EXPECT_THROW(make_decoder(*device_, make_options({3, 12, 5, 20, 6, 11}), {}), UsageError);
  DecoderOptions options = make_options(kTiny);
  options.max_batch = 0;
  EXPECT_THROW(make_decoder(*device_, options, {}), Error);
}

TEST_F(GptTest, RefusesBatchesThatDoNotFit) {
  ModelRun run = make_run(make_options(kTiny));
  EXPECT_THROW(run.evaluate(run.slice(kBatch + 1)), Error);
  ModelRun long_windows = make_run(make_options(kTiny), 7);
  EXPECT_THROW(long_windows.evaluate(long_windows.slice(1)), Error);
  ModelRun short_windows = make_run(make_options(kTiny), 5);
  EXPECT_EQ(short_windows.evaluate(short_windows.slice(1)).samples, 5u);
}

}  // namespace
}  // namespace ddptrain::tests
