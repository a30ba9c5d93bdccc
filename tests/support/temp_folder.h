#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace ddptrain::tests {

/// A folder of its own for the running test, removed at its end.
class TempFolder {
 public:
  TempFolder() : path_(std::filesystem::temp_directory_path() / unique_name()) {
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  static std::string unique_name() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    return std::string("ddptrain-") + test->test_suite_name() + "-" + test->name() + "-" + std::to_string(getpid());
  }

  std::filesystem::path path_;
};

}  // namespace ddptrain::tests
