#include "models/registry.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

TEST(Registry, EveryModelTrainsOnSyntheticDataWithItsDefaults) {
  EXPECT_FALSE(model_names().empty());
  for (const std::string& name : model_names()) {
    const auto workload = make_workload(name);
    Flags flags = workload->flags();
    find_flag(flags, "--data")->set("synthetic:20000");
    workload->check_flags();
    workload->open({0, 0, 1, 2, 1});
    workload->load();
    EXPECT_GT(workload->data().train_count(), 0) << name;
    EXPECT_GT(workload->data().test_count(), 0) << name;
  }
}

TEST(Registry, UnknownNameListsTheModels) {
  try {
    make_workload("resnet");
    FAIL() << "no error";
  } catch (const UsageError& error) {
    for (const char* part : {"resnet", "cnn", "gpt"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace ddptrain
