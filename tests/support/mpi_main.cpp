#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <iostream>

namespace ddptrain {

namespace {

World* world_of_main = nullptr;

/// Tells of failures on ranks whose other output is not shown, and ends the job after a failure that left a test early:
/// the other ranks may wait for this one for ever.
class RankListener final : public testing::EmptyTestEventListener {
 public:
  explicit RankListener(const World& world) : world_(world) {}

  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed() || world_.rank() == 0) return;
    std::cerr << "[rank " << world_.rank() << "] " << (result.file_name() ? result.file_name() : "unknown file") << ":"
              << result.line_number() << ": " << result.message() << std::endl;
  }

  void OnTestEnd(const testing::TestInfo& test) override {
    if (!test.result()->HasFatalFailure() || world_.size() == 1) return;
    std::cerr << "[rank " << world_.rank() << "] " << test.test_suite_name() << "." << test.name()
              << " FAILED and was left early; ending all ranks" << std::endl;
    world_.abort(1);
  }

 private:
  const World& world_;
};

}  // namespace

World& test_world() { return *world_of_main; }

}  // namespace ddptrain

int main(int argc, char** argv) {
  ddptrain::shorten_mpi_start();
  ddptrain::World world(&argc, &argv);
  ddptrain::world_of_main = &world;
  testing::InitGoogleTest(&argc, argv);
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (world.rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new ddptrain::RankListener(world));
  const int result = RUN_ALL_TESTS();
  return static_cast<int>(world.max(result));
}
