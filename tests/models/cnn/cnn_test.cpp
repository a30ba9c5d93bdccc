#include "models/cnn/cnn.h"

#include <algorithm>
#include <set>

#include "runtime/core/error.h"
#include "tests/models/model_run.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kBatch = 5;
constexpr CnnShape kSmall{11, 12, 4, 6, 8, 10};

class CnnTest : public ::testing::Test {
 protected:
  ModelRun make_run(bool dropout, std::int64_t max_batch = kBatch) {
    return {*device_, DType::f64, [&](Bench& bench) -> BoundModel {
              const ImageBatch data = make_batch(bench, kBatch, kSmall.height, kSmall.width, kSmall.classes, 3);
              return {make_cnn(*device_, {max_batch, 99, dropout}, {data, data}, kSmall), data};
            }};
  }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64});
};

TEST_F(CnnTest, HasThePublishedSize) {
  const auto cnn = make_cnn(*device_, {1, 0, true}, {});
  std::int64_t parameters = 0;
  for (const ParameterSpec& spec : cnn->parameters()) parameters += element_count(spec.shape);
  EXPECT_EQ(parameters, 1199882);
  EXPECT_NEAR(cnn->flops_per_sample(), 71.57e6, 0.01e6);
}

TEST_F(CnnTest, StartsLikePyTorch) {
  const auto cnn = make_cnn(*device_, {1, 0, true}, {});
  for (const ParameterSpec& spec : cnn->parameters()) {
    const double fan_in = spec.name.rfind("conv1", 0) == 0   ? 9
                          : spec.name.rfind("conv2", 0) == 0 ? 288
                          : spec.name.rfind("fc1", 0) == 0   ? 9216
                                                             : 128;
    EXPECT_FLOAT_EQ(spec.initial.scale, static_cast<float>(1.0 / std::sqrt(fan_in))) << spec.name;
    EXPECT_EQ(spec.decays, spec.shape.size() > 1) << spec.name;
  }
}

TEST_F(CnnTest, GradientsMatchFiniteDifferences) {
  constexpr double kStep = 1e-6;
  for (const bool dropout : {false, true}) {
    ModelRun run = make_run(dropout);
    const Slice data = run.slice();
    run.forward(data, 0.25f);
    const auto gradients = run.backward(false);
    for (std::size_t i = 0; i < run.weights().size(); ++i) {
      const std::string& name = run.model().parameters()[i].name;
      const Tensor& weight = run.weights()[i];
      const Values start = run.bench().take(weight);
      for (const std::uint32_t seed : {1u, 2u, 3u}) {
        const Values direction = random_values(weight.size(), seed);
        const auto loss = [&](double step) {
          for (std::size_t j = 0; j < start.size(); ++j) weight.as<double>()[j] = start[j] + step * direction[j];
          return run.forward(data, 0.25f).loss * 0.25;
        };
        const double measured = (loss(kStep) - loss(-kStep)) / (2 * kStep);
        std::copy(start.begin(), start.end(), weight.as<double>());
        double expected = 0.0;
        for (std::size_t j = 0; j < start.size(); ++j) expected += gradients.at(name)[j] * direction[j];
        EXPECT_NEAR(measured, expected, 1e-6 * (std::abs(expected) + 1e-2)) << name << " dropout " << dropout;
      }
    }
  }
}

TEST_F(CnnTest, ReportsEveryParameterOnceWhenItsGradientIsFinal) {
  ModelRun run = make_run(true);
  run.forward(run.slice(), 0.25f);
  const auto final_gradients = run.backward(false);
  run.forward(run.slice(), 0.25f);
  std::set<std::size_t> reported;
  // A rerun of the same batch gives the same gradients; they must stand there already when reported.
  std::vector<Tensor> gradients;
  for (const ParameterSpec& spec : run.model().parameters()) gradients.push_back(run.bench().poisoned(spec.shape));
  run.model().bind({run.weights(), gradients});
  run_backward(run.model(), false, [&](std::size_t i) {
    EXPECT_TRUE(reported.insert(i).second) << i;
    EXPECT_EQ(run.bench().take(gradients.at(i)), final_gradients.at(run.model().parameters()[i].name));
  });
  EXPECT_EQ(reported.size(), run.model().parameters().size());
}

TEST_F(CnnTest, UnitsReadTheirWeights) {
  ModelRun run = make_run(true);
  expect_units_read_their_weights(run);
}

TEST_F(CnnTest, SaysWhenGradientsAreComplete) {
  ModelRun run = make_run(true);
  expect_work_in_the_order_of_backward(run);
}

TEST_F(CnnTest, WeightsAreNotReadAfterTheyWereReported) {
  ModelRun run = make_run(true);
  run.forward(run.slice(), 0.25f);
  const auto expected = run.backward(false);
  run.forward(run.slice(), 0.25f);
  std::vector<Tensor> fresh;
  for (const ParameterSpec& spec : run.model().parameters()) fresh.push_back(run.bench().poisoned(spec.shape));
  run.model().bind({run.weights(), fresh});
  run_backward(run.model(), false, [&](std::size_t i) {
    std::fill_n(run.weights()[i].as<double>(), run.weights()[i].size(), std::nan(""));
  });
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const std::string& name = run.model().parameters()[i].name;
    EXPECT_EQ(run.bench().take(fresh[i]), expected.at(name)) << name;
  }
}

TEST_F(CnnTest, AccumulatesMicroSteps) {
  ModelRun run = make_run(false);
  const Slice whole = run.slice();
  run.forward(whole, 0.25f);
  const auto expected = run.backward(false);
  Slice part = whole;
  part.count = 2;
  run.forward(part, 0.25f);
  run.backward(false);
  part.order.first += 2;
  part.count = 3;
  run.forward(part, 0.25f);
  for (const auto& [name, values] : run.backward(true)) {
    EXPECT_LE(relative_error(values, expected.at(name)), 1e-12) << name;
  }
}

/// Dropout follows the position in the global batch, so cutting a batch changes nothing.
TEST_F(CnnTest, DropoutDoesNotDependOnHowTheBatchIsCut) {
  ModelRun run = make_run(true);
  const Slice whole = run.slice();
  const double loss = run.forward(whole, 0.25f).loss;
  Slice part = whole;
  part.count = 2;
  double sum = run.forward(part, 0.25f).loss;
  part.order.first += 2;
  part.count = 3;
  sum += run.forward(part, 0.25f).loss;
  EXPECT_NEAR(sum, loss, 1e-12 * loss);
}

TEST_F(CnnTest, EvaluationHasNoDropout) {
  ModelRun with = make_run(true);
  ModelRun without = make_run(false);
  const double evaluated = with.evaluate(with.slice()).loss;
  EXPECT_EQ(evaluated, without.forward(without.slice(), 0.25f).loss);
  EXPECT_NE(evaluated, with.forward(with.slice(), 0.25f).loss);
}

TEST_F(CnnTest, RefusesBatchesThatDoNotFit) {
  EXPECT_THROW(make_cnn(*device_, {0, 0, true}, {}), Error);
  ModelRun run = make_run(true, 4);
  EXPECT_THROW(run.evaluate(run.slice(5)), Error);
  EXPECT_EQ(run.evaluate(run.slice(4)).samples, 4u);
}

}  // namespace
}  // namespace ddptrain::tests
