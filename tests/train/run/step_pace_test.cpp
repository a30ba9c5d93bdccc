#include "runtime/train/run/step_pace.h"

#include <chrono>
#include <thread>

#include "tests/train/checkpoint/checkpoint_rig.h"

namespace ddptrain::tests {
namespace {

TEST(StepPace, PiecesGrowToAThirdOfASecondAndShrinkAgain) {
  Replica run(test_world(), options_with(OptimizerKind::sgd, Zero::nothing));
  StepPace pace(test_world(), *run.device);
  EXPECT_EQ(pace.left(), 1);
  for (int i = 0; i < 6 || (i < 1000 && pace.left() == 1); ++i) {  // the machine may stand still during the last one
    EXPECT_TRUE(pace.queued(pace.left()));
    pace.next_piece();
  }
  const std::int64_t fast = pace.left();
  EXPECT_GT(fast, 1);  // how much it is depends on the machine
  EXPECT_TRUE(fast < 8 || fast % 8 == 0) << fast;
  EXPECT_FALSE(pace.queued(fast - 1));
  EXPECT_EQ(pace.left(), 1);
  EXPECT_TRUE(pace.queued(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(test_world().rank() == 0 ? 700 : 0));
  pace.next_piece();
  EXPECT_LT(pace.left(), fast);
  EXPECT_EQ(test_world().min(static_cast<double>(pace.left())), test_world().max(static_cast<double>(pace.left())));
}

}  // namespace
}  // namespace ddptrain::tests
