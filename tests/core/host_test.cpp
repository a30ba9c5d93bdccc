#include "runtime/core/process/host.h"

#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <fstream>
#include <string>

#include "tests/support/temp_folder.h"

namespace ddptrain {
namespace {

/// A machine with 64 KiB available, of which swap is not a part.
class HostMemory : public ::testing::Test {
 protected:
  HostMemory() { write("proc/meminfo", "MemTotal:  100 kB\nMemAvailable:     64 kB\nSwapFree:        0 kB\n"); }

  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  std::size_t available() const { return available_host_memory(root_.path()); }

  tests::TempFolder root_;
};

TEST_F(HostMemory, WithoutLimitsItIsWhatTheHostHas) {
  EXPECT_EQ(available(), 64u * 1024);
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "max\n");
  write("sys/fs/cgroup/user/job/memory.current", "5000\n");
  EXPECT_EQ(available(), 64u * 1024);
  write("proc/meminfo", "MemAvailable:     64 kB\nSwapFree:        3 kB\n");
  EXPECT_EQ(available(), 67u * 1024);
}

TEST_F(HostMemory, AGroupLimitsWhatIsBelowIt) {
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/memory.max", "10000\n");
  write("sys/fs/cgroup/user/memory.current", "7000\n");
  EXPECT_EQ(available(), 3000u);
  write("sys/fs/cgroup/user/memory.stat", "anon 100\nfile 2500\nshmem 500\n");  // pages of files can be dropped
  EXPECT_EQ(available(), 5000u);
  write("sys/fs/cgroup/user/job/memory.max", "1000\n");
  write("sys/fs/cgroup/user/job/memory.current", "1000\n");
  EXPECT_EQ(available(), 0u);
}

/// In a container, the path is that of outside, and the mount is the group itself.
TEST_F(HostMemory, AContainersLimitIsAtTheMount) {
  write("proc/self/cgroup", "0::/system/container-7\n");
  write("sys/fs/cgroup/memory.max", "4000\n");
  write("sys/fs/cgroup/memory.current", "1500\n");
  EXPECT_EQ(available(), 2500u);
}

TEST(UsableCores, HyperthreadsShareOneAndACgroupLimitsThem) {
  tests::TempFolder root;
  const auto write = [&](const std::filesystem::path& name, const std::string& text) {
    std::filesystem::create_directories((root / name).parent_path());
    std::ofstream(root / name) << text;
  };
  const int processors = usable_cores(root.path());  // without a word about siblings
  EXPECT_GE(processors, 1);
  for (int i = 0; i < 1024; ++i) {
    write(fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", i), "0-1023\n");
  }
  EXPECT_EQ(usable_cores(root.path()), 1);
  for (int i = 0; i < 1024; ++i) {
    write(fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", i), fmt::format("{}\n", i));
  }
  EXPECT_EQ(usable_cores(root.path()), processors);
  write("sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(usable_cores(root.path()), processors);
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(usable_cores(root.path()), 1);
}

}  // namespace
}  // namespace ddptrain
