#include "models/cnn/cnn.h"

#include "runtime/core/error.h"
#include "runtime/ops/meta_device.h"
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
  EXPECT_EQ(element_count(cnn->parameters()), 1199882);
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

TEST_F(CnnTest, IsAModel) {
  for (const bool dropout : {false, true}) expect_a_model([&] { return make_run(dropout); }, false);
}

TEST_F(CnnTest, EvaluationHasNoDropout) {
  ModelRun with = make_run(true);
  ModelRun without = make_run(false);
  const double evaluated = with.evaluate(with.slice()).loss;
  EXPECT_EQ(evaluated, without.forward(without.slice(), 0.25f).loss);
  EXPECT_NE(evaluated, with.forward(with.slice(), 0.25f).loss);
}

/// The meta device stands for a GPU: with fused kernels in bf16, without in fp32.
TEST_F(CnnTest, RefusesMemoryFormatsThatTheDeviceDoesNotHave) {
  const auto make = [](Device& device, MemoryFormat format) { make_cnn(device, {1, 0, true, format}, {}); };
  make(*device_, MemoryFormat::nhwc);
  EXPECT_THROW(make(*device_, MemoryFormat::nchw), UsageError);
  const auto fused = make_meta_device({.precision = Precision::bf16}, DeviceKind::cuda);
  make(*fused, MemoryFormat::automatic);
  EXPECT_THROW(make(*fused, MemoryFormat::nhwc), UsageError);
  EXPECT_THROW(make(*fused, MemoryFormat::nchw), UsageError);
  const auto generic = make_meta_device({.precision = Precision::bf16, .fused = false}, DeviceKind::cuda);
  make(*generic, MemoryFormat::nchw);
  make(*make_meta_device({.precision = Precision::fp32}, DeviceKind::cuda), MemoryFormat::nchw);
}

TEST_F(CnnTest, RefusesBatchesThatDoNotFit) {
  EXPECT_THROW(make_cnn(*device_, {0, 0, true}, {}), Error);
  ModelRun run = make_run(true, 4);
  EXPECT_THROW(run.evaluate(run.slice(5)), Error);
  EXPECT_EQ(run.evaluate(run.slice(4)).samples, 4u);
}

}  // namespace
}  // namespace ddptrain::tests
