// Lion against recorded values: Program 1 of Chen et al., "Symbolic discovery of optimization algorithms"
// (arXiv:2302.06675), in Python with lr, beta1, beta2, decay = 0.0625, 0.875, 0.96875, 0.25:
//
//   for g in gradients:
//     c = beta1 * m + (1 - beta1) * g
//     w -= lr * (sign(c) + decay * w)
//     m = beta2 * m + (1 - beta2) * g

#include <cstring>

#include "runtime/ops/optimizer.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {
namespace {

// All exact in bf16, as are their doubles.
const Values kStart = {0.5, -1.25, 2.0, -0.75, 0.125, 3.0};
const std::vector<Values> kGradients = {{0.25, -1.0, 0.5, 0.0625, -0.03125, 2.0},
                                        {-0.5, 0.75, 0.5, -1.0, 0.25, -0.25},
                                        {1.5, -0.5, -2.0, 0.125, 0.5, -4.0},
                                        {-0.125, 1.0, -0.25, 2.0, -1.0, 0.5}};
const Values kWeights = {0.34639766812324524, -1.175609901547432,  1.8817447423934937,
                         -0.7042425125837326, 0.11739898473024368, 2.820694386959076};
const Values kMomentum = {0.03394293785095215, 0.009697914123535156,  -0.0394902229309082,
                          0.03873246908187866, -0.009669274091720581, -0.05597877502441406};

class LionTest : public ::testing::TestWithParam<DeviceCase> {};

TEST_P(LionTest, FollowsRecordedValues) {
  if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
  const auto device = make_device(GetParam());
  auto& optimizer = device->get<OptimizerOps>();
  for (const float scale : {1.0f, 0.5f}) {
    Bench bench(*device);
    const Shape shape = {static_cast<std::int64_t>(kStart.size())};
    const Tensor master = bench.put_master(kStart, shape);
    const Tensor momentum = bench.put_master(Values(kStart.size(), 0.0), shape);
    const Tensor weights = master.dtype == device->dtype() ? master : bench.put(kStart, shape);
    StepState* state = bench.put_object(StepState{});
    OptimizerSettings settings;
    settings.kind = OptimizerKind::lion;
    settings.schedule.peak = 0.0625f;
    settings.beta1 = 0.875f;
    settings.beta2 = 0.96875f;
    settings.weight_decay = 0.25f;
    UpdateSlice slice;
    slice.chunks = bench.put_object(UpdateChunk{.count = static_cast<std::uint16_t>(kStart.size()), .decays = 1});
    slice.chunk_count = 1;
    slice.parameter_count = 1;
    slice.weight_type = slice.gradient_type = device->dtype();
    slice.weights = weights.data;
    slice.master = master.data;
    slice.state = {momentum.data};
    slice.gradient_scale = bench.put_object(scale);
    for (const Values& gradient : kGradients) {
      Values scaled = gradient;
      for (double& g : scaled) g /= static_cast<double>(scale);
      slice.gradients = bench.put(scaled, shape).data;
      optimizer.update(settings, slice, {state, 0}, device->compute_stream());
      optimizer.advance(state, 1, device->compute_stream());
    }
    EXPECT_LE(relative_error(bench.take(master), kWeights), 1e-6);
    EXPECT_LE(relative_error(bench.take(momentum), kMomentum), 1e-6);
    EXPECT_EQ(bench.take(weights), bench.rounded(bench.take(master)));
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, LionTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
