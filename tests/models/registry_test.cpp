#include "models/registry.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

TEST(Registry, MakesEveryModelItNames) {
  const auto device = make_cpu_device({});
  ModelOptions options;
  options.max_batch = 2;
  options.gpt = {1, 8, 2, 16, 4, 10};
  EXPECT_FALSE(model_names().empty());
  for (const std::string& name : model_names()) {
    EXPECT_FALSE(make_model(name, *device, options)->parameters().empty()) << name;
  }
}

TEST(Registry, UnknownNameListsTheModels) {
  const auto device = make_cpu_device({});
  try {
    make_model("resnet", *device, {});
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("resnet"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cnn"), std::string::npos);
  }
}

}  // namespace
}  // namespace ddptrain
