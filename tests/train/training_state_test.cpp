#include "runtime/train/step/store/training_state.h"

#include "tests/train/checkpoint/checkpoint_rig.h"

namespace ddptrain::tests {
namespace {

Replica run_with(Zero zero) { return {test_world(), options_with(OptimizerKind::adamw, zero)}; }

TEST(TrainingState, NamesEveryArrayOnceWithItsShapeAndPlacement) {
  for (const Zero zero : kZeroStages) {
    const Replica run = run_with(zero);
    const std::vector<StateArray> arrays = run.trainer->state().arrays();
    const auto placement = [&](Zero from) {
      return zero >= from && test_world().size() > 1 ? Placement::sharded : Placement::replicated;
    };
    std::string names;
    std::map<std::string, const StateArray*> by_name;
    for (const StateArray& array : arrays) {
      EXPECT_TRUE(by_name.emplace(array.name, &array).second) << array.name << " comes twice";
      names += array.name + '\n';
    }
    for (const std::string& other : test_world().all_gather(names)) EXPECT_EQ(other, names);
    EXPECT_EQ(arrays.size(), 1 + 3 * run.trainer->arena().specs().size() + 1);  // step; weights, two moments; buffer
    EXPECT_EQ(by_name.at("step")->placement, Placement::replicated);
    EXPECT_EQ(by_name.at("buffer/seen")->placement, Placement::per_rank);
    EXPECT_EQ(by_name.at("buffer/seen")->shape(), (Shape{3}));
    EXPECT_EQ(by_name.at("weight/wte.weight")->shape(), (Shape{16, 8}));
    EXPECT_EQ(by_name.at("weight/wte.weight")->placement, placement(Zero::weights));
    EXPECT_EQ(by_name.at("slot_1/wte.weight")->placement, placement(Zero::state));
  }
}

}  // namespace
}  // namespace ddptrain::tests
