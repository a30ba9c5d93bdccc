#include "models/registry.h"

#include <gtest/gtest.h>

#include "tests/support/says.h"

namespace ddptrain {
namespace {

TEST(Registry, EveryModelTrainsOnSyntheticDataWithItsDefaults) {
  EXPECT_FALSE(model_names().empty());
  for (const std::string& name : model_names()) {
    const auto workload = make_workload(name);
    Flags flags = workload->flags();
    find_flag(flags, "--data")->set("synthetic:20000");
    workload->check_flags();
    workload->open({.seed = 2});
    workload->load();
    EXPECT_GT(workload->data().train_count(), 0) << name;
    EXPECT_GT(workload->data().test_count(), 0) << name;
  }
}

TEST(Registry, UnknownNameListsTheModels) {
  const std::string message = error_message([] { make_workload("resnet"); });
  for (const char* part : {"resnet", "cnn", "gpt"}) EXPECT_CONTAINS(message, part);
}

}  // namespace
}  // namespace ddptrain
