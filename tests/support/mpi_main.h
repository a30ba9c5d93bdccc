#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "runtime/comm/world.h"

namespace ddptrain {

/// The ranks that run these tests; every rank runs every test.
World& test_world();

namespace tests {

/// A folder of this test that all ranks know; empty at first, and gone at last.
struct SharedFolder : std::filesystem::path {
  explicit SharedFolder(const std::string& name)
      : std::filesystem::path(
            test_world().all_gather(testing::TempDir() + fmt::format("{}_{}", name, getpid())).front()) {
    if (test_world().rank() == 0) std::filesystem::create_directories(*this);
    test_world().barrier();
  }
  ~SharedFolder() {
    test_world().barrier();
    if (test_world().rank() == 0) std::filesystem::remove_all(*this);
  }
};

}  // namespace tests
}  // namespace ddptrain
