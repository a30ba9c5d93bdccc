#include "runtime/core/process/host.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "runtime/core/process/cores.h"
#include "tests/support/says.h"
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
  EXPECT_EQ(pinnable_host_memory(root_.path()), 64u * 1024) << "pinned memory cannot be swapped out";
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

TEST_F(HostMemory, GroupsOfVersion1LimitToo) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/other\n4:memory:/slurm/job\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // no limit
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "60000\n");
  EXPECT_EQ(available(), 64u * 1024);
  write("sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "20000\n");
  write("sys/fs/cgroup/memory/slurm/memory.usage_in_bytes", "15000\n");
  EXPECT_EQ(available(), 5000u);
  write("sys/fs/cgroup/memory/slurm/memory.stat", "cache 1\ntotal_cache 4000\ntotal_shmem 1000\n");
  EXPECT_EQ(available(), 8000u);
  write("sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "3000\n");
  write("sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "1000\n");
  EXPECT_EQ(available(), 2000u);
}

/// In a container of version 1, too, the mount is the group itself.
TEST_F(HostMemory, AContainersLimitOfVersion1IsAtTheMount) {
  write("proc/self/cgroup", "12:memory:/docker/0123\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "4000\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1500\n");
  EXPECT_EQ(available(), 2500u);
}

/// Version 2's line need not be the first.
TEST_F(HostMemory, BothVersionsAreRead) {
  write("proc/self/cgroup", "1:name=systemd:/x\n0::/user/job\n");
  write("sys/fs/cgroup/user/job/memory.max", "3000\n");
  write("sys/fs/cgroup/user/job/memory.current", "1000\n");
  EXPECT_EQ(available(), 2000u);
}

TEST_F(HostMemory, CoresAreLimitedByQuotas) {
  const auto cores = [&] { return usable_cores(root_.path()); };
  const int all = cores();
  EXPECT_GE(all, 1);
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/cpu.max", "max 100000\n");
  EXPECT_EQ(cores(), all);
  write("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores(), 1);
  write("proc/self/cgroup", "3:cpu,cpuacct:/slurm/job\n");
  write("sys/fs/cgroup/cpu/slurm/job/cpu.cfs_quota_us", "-1\n");
  write("sys/fs/cgroup/cpu/slurm/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores(), all);
  write("sys/fs/cgroup/cpu/slurm/job/cpu.cfs_quota_us", "20000\n");
  EXPECT_EQ(cores(), 1);
}

TEST_F(HostMemory, TheNarrowestGroupLimitsTheCores) {
  EXPECT_EQ(core_limit(root_.path()), std::nullopt);
  write("proc/self/cgroup", "0::/user/job\n");
  write("sys/fs/cgroup/user/cpu.max", "150000 100000\n");
  write("sys/fs/cgroup/user/job/cpu.max", "max 100000\n");
  EXPECT_EQ(core_limit(root_.path()), 1.5);
  write("sys/fs/cgroup/user/job/cpu.max", "25000 50000\n");
  EXPECT_EQ(core_limit(root_.path()), 0.5);
}

TEST_F(HostMemory, CoresAreBusyWithAllButIdlingAndWaitingForDisks) {
  const auto second = static_cast<double>(sysconf(_SC_CLK_TCK));
  EXPECT_EQ(busy_seconds({0}, root_.path()), std::nullopt);
  write("proc/stat", "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 5000 600 1 2 47 0 0\ncpu1 50 0 0 7 0 0 0 0 0 0\n");
  EXPECT_DOUBLE_EQ(*busy_seconds({0}, root_.path()), 200.0 / second);
  EXPECT_DOUBLE_EQ(*busy_seconds({0, 1}, root_.path()), 250.0 / second);
  EXPECT_EQ(busy_seconds({0, 2}, root_.path()), std::nullopt) << "a core that is hidden";
  write("proc/stat", "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n");
  EXPECT_EQ(busy_seconds({0}, root_.path()), std::nullopt) << "as some containers have it";
}

TEST(HostMemoryOfRanks, WhatTheyCannotTakeIsRefused) {
  require_host_memory("1 byte", 1, 1000);
  EXPECT_CONTAINS(error_message([] { require_host_memory("9 images", std::uint64_t{1} << 60, 2); }),
                  "9 images would take 1152921.50 TB of each rank, and ");
}

/// Several threads that want the same core wait for it.
TEST(CoreWait, CountsTheTimeForWhichAThreadWaitedForItsCore) {
  const std::set<int> all = allowed_cores();
  ASSERT_FALSE(all.empty());
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(*all.begin(), &one);
  std::atomic<bool> done = false;
  std::thread measured([&] {
    sched_setaffinity(0, sizeof(one), &one);
    EXPECT_EQ(allowed_cores(), std::set<int>{*all.begin()});
    CoreWait wait;
    std::thread other([&] {
      sched_setaffinity(0, sizeof(one), &one);
      while (!done) continue;
    });
    while (wait.seconds() < 1e-2) continue;
    done = true;
    other.join();
  });
  measured.join();
}

TEST(CoreWait, LeavesOutSleep) {
  const auto start = std::chrono::steady_clock::now();
  CoreWait wait;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double waited = wait.seconds();  // for a core after the sleep, perhaps
  EXPECT_LT(waited, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() - 0.19);
}

}  // namespace
}  // namespace ddptrain
