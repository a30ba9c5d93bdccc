#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "runtime/core/error.h"
#include "runtime/train/run/run_guard.h"
#include "runtime/train/run/training_run.h"
#include "tests/support/says.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What becomes of one element of a gradient, in steps [first, end) counted from 0, on one rank.
struct Planted {
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  std::size_t parameter = 1;
  std::int64_t element = 999;
  float value = kNan;
  int rank = test_world().size() - 1;
};

/// Gradients that depend on the step and the element alone, and what is planted in them. The loss of a step is its
/// number, and NaN where something is planted. Works from the host: without graphs.
class PlantedModel final : public Model {
 public:
  PlantedModel(Device& device, const Planted& planted) : device_(device), planted_(planted) {
    for (const ParameterSpec& spec : specs_) {
      staging_.push_back(device.allocate(static_cast<std::size_t>(spec.size()) * sizeof(float)));
    }
  }

  const std::vector<ParameterSpec>& parameters() const override { return specs_; }
  void bind(const ModelTensors& tensors) override { gradients_ = tensors.gradients; }
  void begin(const MicroBatch& batch) override { batch_ = batch; }
  void forward(std::size_t) override {
    MetricSums mine;
    device_.copy_to_host(&mine, batch_.sums, sizeof(mine));
    mine.loss += plants() ? std::nan("") : static_cast<double>(step_);
    mine.samples += static_cast<std::uint64_t>(batch_.slice.count);
    device_.copy_to_device(batch_.sums, &mine, sizeof(mine));
    log(mine);
  }
  void backward(std::size_t, bool, const Ready& ready) override {
    for (std::size_t i = 0; i < specs_.size(); ++i) {
      std::vector<float> values(static_cast<std::size_t>(specs_[i].size()));
      for (std::size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>((k + step_) % 5) - 1.5f;
      if (plants() && i == planted_.parameter) values.at(static_cast<std::size_t>(planted_.element)) = planted_.value;
      device_.copy_to_device(staging_[i].data(), values.data(), staging_[i].bytes());
      device_.convert(staging_[i].view(DType::f32, specs_[i].shape), gradients_[i], device_.compute_stream());
      device_.synchronize();
      ready(i);
    }
    ++step_;
  }
  double flops_per_sample() const override { return 1.0; }
  const char* sample_unit() const override { return "images"; }

 private:
  /// What kernels do at the end of a logged step: see StepLog::note_sums().
  void log(const MetricSums& mine) const {
    if (!batch_.training) return;
    StepState state;
    device_.copy_to_host(&state, batch_.slice.step.state, sizeof(state));
    const std::uint64_t done = state.step + batch_.slice.step.offset + 1;
    if (!state.log.logs(done) || batch_.sums != state.log.training) return;
    device_.copy_to_device(state.log.sums + state.log.slot(done), &mine, sizeof(mine));
  }

  bool plants() const {
    return test_world().rank() == planted_.rank && step_ >= planted_.first && step_ < planted_.end;
  }

  Device& device_;
  Planted planted_;
  MicroBatch batch_;
  std::vector<ParameterSpec> specs_ = {{"head", {300}, InitialValue::uniform(0.1f)},
                                       {"body", {5000}, InitialValue::uniform(0.1f)},
                                       {"stem", {7}, InitialValue::uniform(0.1f)}};
  std::vector<Buffer> staging_;  ///< Not in backward(): memory that is given back waits for all work of the GPU.
  std::vector<Tensor> gradients_;
  std::uint64_t step_ = 0;
};

TrainerOptions options_of(OnNonFinite on_nonfinite) {
  TrainerOptions options;
  options.batch = 12 / test_world().size();
  options.bucket_bytes = 4000;
  options.last_bucket_bytes = 1000;
  options.on_nonfinite = on_nonfinite;
  options.graph = false;
  return options;
}

RunOptions steps_of(std::int64_t steps, std::int64_t log_every) {
  RunOptions options;
  options.steps = steps;
  options.log_every = log_every;
  return options;
}

struct PlantedRun {
  Rig& rig;
  std::unique_ptr<Trainer> trainer;

  PlantedRun(Rig& rig, const TrainerOptions& options, const Planted& planted)
      : rig(rig), trainer(rig.trainer(options, some_images(), std::make_unique<PlantedModel>(*rig.device, planted))) {}

  RunResult run(RunOptions options) {
    options.baseline = false;
    return run_training(*trainer, test_world(), options, nullptr);
  }
  StepState state() const {
    StepState state;
    rig.device->copy_to_host(&state, trainer->state().step(), sizeof(state));
    return state;
  }
  /// All that training changes, but the step.
  std::map<std::string, std::vector<std::vector<char>>> arrays() const {
    std::map<std::string, std::vector<std::vector<char>>> copy;
    for (const StateArray& array : trainer->state().arrays()) {
      if (array.name == "step") continue;
      for (const StateArray::Piece& piece : array.pieces) {
        auto& bytes = copy[array.name].emplace_back(piece.values.bytes());
        rig.device->copy_to_host(bytes.data(), piece.values.data, bytes.size());
      }
    }
    return copy;
  }
};

void expect_left_out(Rig& rig, const TrainerOptions& options, const Planted& planted) {
  PlantedRun run(rig, options, planted);
  run.trainer->run(planted.first);
  EXPECT_EQ(run.state().nonfinite.left_out, 0u);
  const auto before = run.arrays();
  run.trainer->run(1);
  EXPECT_EQ(run.arrays(), before) << "value " << planted.value << ", clip " << options.clip_norm << ", zero "
                                  << static_cast<int>(options.zero);
  EXPECT_EQ(run.state().step, planted.first + 1);
  const NonFinite found = run.state().nonfinite;
  EXPECT_EQ(found.left_out, 1u);
  EXPECT_EQ(found.in_a_row, 1u);
  EXPECT_EQ(found.first_step(), planted.first);
  EXPECT_EQ(test_world().min(found.first_parameter()), static_cast<double>(planted.parameter));
  run.trainer->run(1);
  EXPECT_NE(run.arrays(), before) << "training goes on";
  EXPECT_EQ(run.state().nonfinite.in_a_row, 0u);
  const MetricSums sums = run.trainer->metrics().take_training();
  EXPECT_EQ(sums.samples, 12u * (planted.first + 1)) << "the step that was left out does not count";
  EXPECT_TRUE(std::isfinite(sums.loss));
  const std::vector<double> weights = master_values(run.trainer->arena(), *rig.device);
  EXPECT_TRUE(std::ranges::all_of(weights, [](double w) { return std::isfinite(w); }));
}

TEST_P(EachDevice, SkipLeavesWeightsMastersAndMomentsUntouched) {
  for (const Precision precision : precisions()) {
    Rig rig(GetParam(), precision);
    for (const float value : {kNan, kInfinity, -kInfinity, 1e25f}) {
      for (const float clip_norm : {0.0f, 0.5f}) {
        for (const Zero zero : kZeroStages) {
          TrainerOptions options = options_of(OnNonFinite::skip);
          options.clip_norm = clip_norm;
          options.zero = zero;
          expect_left_out(rig, options, {.first = 3, .end = 4, .value = value});
        }
      }
    }
  }
}

/// Clipping waits for the norm in any case, and must not make 1 of a norm that is NaN.
TEST_P(EachDevice, ClippingTakesNoStepOfANormThatIsNotFinite) {
  Rig rig(GetParam(), Precision::fp32);
  for (const float value : {kNan, kInfinity}) {
    TrainerOptions options = options_of(OnNonFinite::stop);
    options.clip_norm = 1.0f;
    PlantedRun run(rig, options, {.first = 1, .end = 2, .value = value});
    run.trainer->run(1);
    const auto before = run.arrays();
    run.trainer->run(1);
    EXPECT_EQ(run.arrays(), before) << value;
  }
}

TEST_P(EachDevice, SkipChangesNothingWhereAllIsFinite) {
  for (const Precision precision : precisions()) {
    Rig rig(GetParam(), precision);
    PlantedRun stop(rig, options_of(OnNonFinite::stop), {});
    PlantedRun skip(rig, options_of(OnNonFinite::skip), {});
    stop.trainer->run(7);
    skip.trainer->run(7);
    EXPECT_EQ(skip.arrays(), stop.arrays());
    EXPECT_EQ(skip.trainer->metrics().take_training().loss, stop.trainer->metrics().take_training().loss);
    EXPECT_EQ(stop.state().nonfinite.first, 0u);
    EXPECT_EQ(skip.state().nonfinite.first, 0u);
  }
}

std::string agreed_error(PlantedRun& run, RunOptions options) {
  options.trained = [] { ADD_FAILURE() << "parameters of a run that has diverged are not to be saved"; };
  return error_of([&] { run.run(options); });
}

TEST_P(EachDevice, StopEndsTheRunOnAllRanksAndNamesStepAndParameter) {
  for (const Precision precision : precisions()) {
    Rig rig(GetParam(), precision);
    for (const Zero zero : kZeroStages) {
      // Sharded gradients do not wait for the end of backward.
      const OverlapMode other = zero < Zero::gradients ? OverlapMode::off : OverlapMode::backward;
      for (const OverlapMode overlap : {OverlapMode::on, other}) {
        for (const std::uint64_t step : {0, 2, 17}) {
          TrainerOptions options = options_of(OnNonFinite::stop);
          options.zero = zero;
          options.overlap = overlap;
          PlantedRun run(rig, options, {.first = step, .end = step + 1});
          const std::string message = agreed_error(run, steps_of(40, 10));
          EXPECT_TRUE(says(message, fmt::format("step {}: the loss or the gradient of body,", step + 1))) << message;
          EXPECT_TRUE(says(message, "parameters are not saved")) << message;
          const std::uint64_t looked = step < 3 ? 3 : 20;  // where a window ends, or a logged loss is seen
          EXPECT_GE(run.state().step, looked);
          if (GetParam() == DeviceKind::cpu) {  // a GPU has more steps queued
            EXPECT_EQ(run.state().step, looked);
          }
        }
      }
    }
  }
}

TEST_P(EachDevice, ManyStepsInARowEndARunThatSkips) {
  Rig rig(GetParam(), Precision::fp32);
  PlantedRun run(rig, options_of(OnNonFinite::skip), {.first = 5, .end = 1000});
  const std::string message = agreed_error(run, steps_of(40, 20));
  EXPECT_TRUE(says(message, "step 6: the loss or the gradient of body,")) << message;
  EXPECT_TRUE(says(message, "10 steps in a row were left out")) << message;
  PlantedRun five(rig, options_of(OnNonFinite::skip), {});
  five.trainer->run(5);
  EXPECT_EQ(run.arrays(), five.arrays()) << "the parameters stay where they were";
}

/// A row that a good step interrupts is a new one, wherever the host looks.
TEST_P(EachDevice, FewerStepsInARowAreCounted) {
  Rig rig(GetParam(), Precision::fp32);
  for (const std::int64_t log_every : {0, 1, 7}) {
    PlantedRun run(rig, options_of(OnNonFinite::skip), {.first = 5, .end = 14});
    const RunResult result = run.run(steps_of(40, log_every));
    EXPECT_EQ(result.nonfinite_steps, 9u);
    EXPECT_TRUE(std::isfinite(result.epochs.back().train_loss));
  }
}

TEST(NonFinite, TenStepsInARowEndItEvenIfAGoodOneWouldFollow) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  PlantedRun run(rig, options_of(OnNonFinite::skip), {.first = 5, .end = 15});
  EXPECT_TRUE(says(agreed_error(run, steps_of(40, 0)), "10 steps in a row"));
}

TEST(NonFinite, PlacesAreOrderedByStepThenByParameter) {
  const auto place = [](std::uint64_t step, std::uint32_t parameter) { return NonFinite::place(step, parameter); };
  EXPECT_GT(place(3, 9), place(4, 0));
  EXPECT_GT(place(4, 0), place(4, 1));
  EXPECT_GT(place(4, 1000), place(4, NonFinite::kNoParameter));
  EXPECT_GT(place(1'000'000'000'000, 5), 0u);
  const NonFinite found{.first = place(1'000'000'000'000, 5)};
  EXPECT_EQ(found.first_step(), 1'000'000'000'000u);
  EXPECT_EQ(found.first_parameter(), 5u);
}

/// What step_scale() gives for finite norms is the clipping that it always was.
TEST(NonFinite, TheScaleOfAStepIsNanWhereTheNormIsNotFinite) {
  NonFinite found;
  EXPECT_EQ(step_scale(4.0, 0.0f, 0, found), 1.0f);
  EXPECT_EQ(step_scale(4.0, 4.0f, 0, found), 1.0f);
  EXPECT_EQ(step_scale(4.0, 1.0f, 0, found), 1.0f / (2.0f + 1e-6f));
  EXPECT_EQ(found.left_out, 0u);
  for (const double squares : {std::nan(""), std::numeric_limits<double>::infinity(), 1e80}) {
    EXPECT_TRUE(std::isnan(step_scale(squares, 1.0f, 6, found)));
    EXPECT_TRUE(std::isnan(step_scale(squares, 0.0f, 7, found)));
  }
  EXPECT_EQ(found.left_out, 6u);
  EXPECT_EQ(found.in_a_row, 6u);
  EXPECT_EQ(found.first_step(), 6u);
  EXPECT_EQ(found.first_parameter(), NonFinite::kNoParameter);
  EXPECT_EQ(step_scale(4.0, 0.0f, 8, found), 1.0f);
  EXPECT_EQ(found.in_a_row, 0u);
}

}  // namespace
}  // namespace ddptrain
