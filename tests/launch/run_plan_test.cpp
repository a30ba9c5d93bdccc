#include "launch/app/plan/run_plan.h"

#include <gtest/gtest.h>

#include "launch/app/plan/resolve.h"
#include "runtime/core/error.h"
#include "tests/launch/command_line.h"

namespace ddptrain {
namespace {

/// A data set of nothing but numbers of samples.
class Samples final : public Dataset {
 public:
  explicit Samples(std::int64_t train) : train_(train) {}
  std::int64_t train_count() const override { return train_; }
  std::int64_t test_count() const override { return 1; }
  DataContent content() const override { return {"", SharedHash()}; }

 private:
  std::int64_t train_;
};

RunPlan plan_of(const std::vector<const char*>& arguments, PlannedMachine machine, const Dataset* data = nullptr) {
  const CommandLine line = parse(arguments);
  return plan_run(line.options, *line.workload, machine, line.options.trainer.batch, data);
}

TEST(RunPlan, HasWhatFollowsFromFlagsAndMachine) {
  const RunPlan plan = plan_of({"--batch", "8", "--grad-accum", "2", "--epochs", "3", "--lr-scaling", "linear",
                                "--lr-base-batch", "16", "--lr", "0.5"},
                               {.mesh = {1, 4, 1}}, std::make_unique<Samples>(200).get());
  EXPECT_EQ(plan.trainer.batch, 8);
  EXPECT_FLOAT_EQ(plan.trainer.optimizer.schedule.peak, 2.0f);  // 8 * 2 * 4 samples per step
  ASSERT_TRUE(plan.length);
  EXPECT_EQ(plan.length->samples_per_step, 64);
  EXPECT_EQ(plan.length->steps_per_epoch, 3);
  EXPECT_EQ(plan.length->dropped, 8);
  EXPECT_EQ(plan.length->steps, 9);
  EXPECT_EQ(plan.trainer.optimizer.schedule.total_steps, 9u);
  EXPECT_EQ(plan.format, NumberFormat::fp32);
  EXPECT_TRUE(plan.sums_with_mpi);
  EXPECT_EQ(plan.passes_of_step(3).size(), 2u);
}

TEST(RunPlan, ADataSetThatIsTooSmallForAStepIsTold) {
  const Samples few(10);
  EXPECT_THROW(plan_of({"--batch", "8"}, {.mesh = {1, 4, 1}}, &few), UsageError);
  EXPECT_FALSE(plan_of({"--batch", "8"}, {.mesh = {1, 4, 1}}).length) << "what does not train needs no samples";
}

TEST(RunPlan, KnowsItsFormat) {
  const PlannedMachine gpu = {.device = DeviceKind::cuda};
  const RunPlan fp8 = plan_of({"--model", "gpt", "--precision", "fp8"}, gpu);
  EXPECT_EQ(fp8.format, NumberFormat::fp8);
  EXPECT_EQ(fp8.compute.precision, Precision::bf16);
  EXPECT_TRUE(fp8.compute.fp8);
  EXPECT_FALSE(fp8.sums_with_mpi);
  const RunPlan automatic = plan_of({}, gpu);
  EXPECT_EQ(automatic.format, NumberFormat::bf16);
  EXPECT_FALSE(automatic.compute.fp8);
}

TEST(RunPlan, VirtualRanksOfARankOfTheMesh) {
  const RunPlan plan = plan_of({"--model", "gpt", "--virtual-ranks", "8", "--tp", "2"}, {.mesh = {1, 2, 2}});
  const VirtualRanks ranks = plan.virtual_ranks(2);  // the first rank of the second replica
  EXPECT_EQ(ranks.first, 4);
  EXPECT_EQ(ranks.count, 4);
  EXPECT_TRUE(ranks.emulated);
  EXPECT_EQ(plan.passes_of_step(2).size(), 4u);
  EXPECT_TRUE(plan.communicator.scatters_sums);
  EXPECT_FALSE(plan_of({}, {.mesh = {1, 2, 1}}).virtual_ranks(1).emulated);
}

TEST(RunPlan, ABaselineNeedsARankThatCanTrainAlone) {
  EXPECT_TRUE(plan_of({}, {.mesh = {1, 2, 1}}).run.baseline);
  EXPECT_FALSE(plan_of({}, {.mesh = {2, 2, 1}}).run.baseline) << "one rank has no whole model";
  EXPECT_FALSE(plan_of({}, {.mesh = {1, 2, 1}, .shared_gpus = 1}).run.baseline) << "one rank would have a whole GPU";
  EXPECT_FALSE(plan_of({"--baseline", "off"}, {}).run.baseline);
}

}  // namespace
}  // namespace ddptrain
