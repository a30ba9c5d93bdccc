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
  EXPECT_EQ(element_count(mlp->parameters()), 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10);
  EXPECT_DOUBLE_EQ(mlp->flops_per_sample(), 4.0 * 784 * 512 + 6.0 * (512 * 512 + 512 * 10));
}

TEST_F(MlpTest, IsAModel) {
  expect_a_model([&] { return make_run(); });
}

TEST_F(MlpTest, EvaluatesWhatItTrainsOn) {
  ModelRun run = make_run();
  EXPECT_EQ(run.evaluate(run.slice()).loss, run.forward(run.slice(), 0.25f).loss);
}

TEST_F(MlpTest, RefusesBatchesThatDoNotFit) {
  EXPECT_THROW(make_mlp(*device_, 0, {}), Error);
  ModelRun run = make_run();
  EXPECT_THROW(run.evaluate(run.slice(kBatch + 1)), Error);
}

}  // namespace
}  // namespace ddptrain::tests
