#include "models/mlp/mlp.h"

#include "runtime/core/error.h"
#include "tests/models/model_run.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kBatch = 5;
constexpr MlpShape kSmall{4, 3, 6, 10};

class MlpTest : public ::testing::Test {
 protected:
  ModelRun make_run() {
    return {*device_, DType::f64, [this](Bench& bench) -> BoundModel {
              const ImageBatch data = make_batch(bench, kBatch, kSmall.height, kSmall.width, kSmall.classes, 3);
              return {make_mlp(*device_, kBatch, {data, data}, kSmall), data};
            }};
  }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64});
};

TEST_F(MlpTest, HasThePublishedSize) {
  const auto mlp = make_mlp(*device_, 1, {});
  std::int64_t parameters = 0;
  for (const ParameterSpec& spec : mlp->parameters()) parameters += spec.size();
  EXPECT_EQ(parameters, 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10);
  EXPECT_DOUBLE_EQ(mlp->flops_per_sample(), 4.0 * 784 * 512 + 6.0 * (512 * 512 + 512 * 10));
}

TEST_F(MlpTest, SaysWhenGradientsAreComplete) {
  ModelRun run = make_run();
  expect_work_in_the_order_of_backward(run);
}

TEST_F(MlpTest, GradientsMatchFiniteDifferences) {
  constexpr double kStep = 1e-6;
  ModelRun run = make_run();
  run.forward(run.slice(), 0.25f);
  const auto gradients = run.backward(false);
  for (std::size_t i = 0; i < run.weights().size(); ++i) {
    const std::string& name = run.model().parameters()[i].name;
    const Tensor& weight = run.weights()[i];
    const Values start = run.bench().take(weight);
    EXPECT_GT(norm(gradients.at(name)), 1e-3) << name;
    for (const std::uint32_t seed : {1u, 2u, 3u}) {
      const Values direction = random_values(weight.size(), seed);
      const auto loss = [&](double step) {
        for (std::size_t j = 0; j < start.size(); ++j) weight.as<double>()[j] = start[j] + step * direction[j];
        return run.forward(run.slice(), 0.25f).loss * 0.25;
      };
      const double measured = (loss(kStep) - loss(-kStep)) / (2 * kStep);
      std::copy(start.begin(), start.end(), weight.as<double>());
      double expected = 0.0;
      for (std::size_t j = 0; j < start.size(); ++j) expected += gradients.at(name)[j] * direction[j];
      EXPECT_NEAR(measured, expected, 1e-6 * (std::abs(expected) + 1e-2)) << name;
    }
  }
}

TEST_F(MlpTest, ReportsEveryParameterInOrderWhenItsGradientIsFinal) {
  ModelRun run = make_run();
  run.forward(run.slice(), 0.25f);
  const auto expected = run.backward(false);
  run.forward(run.slice(), 0.25f);
  std::vector<Tensor> gradients;
  for (const ParameterSpec& spec : run.model().parameters()) gradients.push_back(run.bench().poisoned(spec.shape));
  run.model().bind({run.weights(), gradients});
  std::size_t next = 0;
  run_backward(run.model(), false, [&](std::size_t i) {
    EXPECT_EQ(i, next++);
    EXPECT_EQ(run.bench().take(gradients.at(i)), expected.at(run.model().parameters()[i].name));
    std::fill_n(run.weights()[i].as<double>(), run.weights()[i].size(), std::nan(""));  // is not read again
  });
  EXPECT_EQ(next, gradients.size());
}

TEST_F(MlpTest, UnitsReadTheirWeights) {
  ModelRun run = make_run();
  expect_units_read_their_weights(run);
}

TEST_F(MlpTest, AccumulatesMicroStepsAndEvaluatesWhatItTrainsOn) {
  ModelRun run = make_run();
  const MetricSums whole = run.forward(run.slice(), 0.25f);
  const auto expected = run.backward(false);
  EXPECT_EQ(run.evaluate(run.slice()).loss, whole.loss);
  Slice part = run.slice(2);
  run.forward(part, 0.25f);
  run.backward(false);
  part.order.first += 2;
  part.count = 3;
  run.forward(part, 0.25f);
  for (const auto& [name, values] : run.backward(true)) {
    EXPECT_LE(relative_error(values, expected.at(name)), 1e-12) << name;
  }
}

TEST_F(MlpTest, RefusesBatchesThatDoNotFit) {
  EXPECT_THROW(make_mlp(*device_, 0, {}), Error);
  ModelRun run = make_run();
  EXPECT_THROW(run.evaluate(run.slice(kBatch + 1)), Error);
}

}  // namespace
}  // namespace ddptrain::tests
