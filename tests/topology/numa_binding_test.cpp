#include "runtime/topology/numa_binding.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <fstream>

#include "runtime/topology/pci.h"
#include "tests/support/says.h"
#include "tests/support/temp_folder.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kGpu = "00000000:1B:00.0";

/// A sysfs with one device on a node of one's choice; bindings and environment are restored in the end.
class NumaBindingTest : public testing::Test {
 protected:
  void SetUp() override {
    sched_getaffinity(0, sizeof(before_), &before_);
    unsetenv("OMPI_MCA_orte_bound_at_launch");
    unsetenv("OMPI_MCA_hwloc_base_binding_policy");
  }

  void TearDown() override { sched_setaffinity(0, sizeof(before_), &before_); }

  void show_node(const std::string& node) {
    const fs::path device = sysfs_ / "bus/pci/devices/0000:1b:00.0";
    fs::create_directories(device);
    std::ofstream(device / "numa_node") << node << "\n";
  }

  static int allowed_cpus() {
    cpu_set_t set;
    sched_getaffinity(0, sizeof(set), &set);
    return CPU_COUNT(&set);
  }

  void bind_to_one_cpu() {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  }

  /// Some virtual machines hide their cores, and hwloc takes the binding for all there is.
  bool hwloc_sees_past_a_binding() {
    show_node("-1");
    bind_to_one_cpu();
    return bind_to_numa(kGpu, sysfs_).find("binding kept") != std::string::npos;
  }

  tests::TempFolder folder_;
  fs::path sysfs_ = folder_.path();
  cpu_set_t before_{};
};

TEST_F(NumaBindingTest, ReadsTheNodeOfADevice) {
  EXPECT_EQ(numa_node_of(kGpu, sysfs_), std::nullopt);
  show_node("3");
  EXPECT_EQ(numa_node_of(kGpu, sysfs_), 3);
  show_node("-1");
  EXPECT_EQ(numa_node_of(kGpu, sysfs_), std::nullopt);
}

TEST_F(NumaBindingTest, OnTheCpuNothingChanges) {
  bind_to_one_cpu();
  setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
  const std::string bound = bind_to_numa("", sysfs_);
  EXPECT_EQ(allowed_cpus(), 1);
  if (CPU_COUNT(&before_) < 2 || !hwloc_sees_past_a_binding()) GTEST_SKIP() << "hwloc sees one CPU only";
  EXPECT_EQ(bound.rfind("CPUs ", 0), 0u) << bound;
}

TEST_F(NumaBindingTest, HiddenNodeLeavesAWideBinding) {
  show_node("-1");
  const int cpus = allowed_cpus();
  EXPECT_CONTAINS(bind_to_numa(kGpu, sysfs_), "hidden");
  EXPECT_EQ(allowed_cpus(), cpus);
}

TEST_F(NumaBindingTest, UndoesTheBindingToOneCoreThatNobodyAskedFor) {
  if (allowed_cpus() < 2) GTEST_SKIP() << "one CPU only";
  if (!hwloc_sees_past_a_binding()) GTEST_SKIP() << "hwloc sees one CPU only";
  setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
  EXPECT_CONTAINS(bind_to_numa(kGpu, sysfs_), "removed mpirun's binding");
  EXPECT_GE(allowed_cpus(), CPU_COUNT(&before_));
}

TEST_F(NumaBindingTest, KeepsTheBindingThatTheUserAskedFor) {
  if (!hwloc_sees_past_a_binding()) GTEST_SKIP() << "hwloc sees one CPU only";
  EXPECT_CONTAINS(bind_to_numa(kGpu, sysfs_), "binding kept");
  EXPECT_EQ(allowed_cpus(), 1);
  setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
  setenv("OMPI_MCA_hwloc_base_binding_policy", "core", 1);
  bind_to_numa(kGpu, sysfs_);
  EXPECT_EQ(allowed_cpus(), 1);
}

TEST_F(NumaBindingTest, BindsToTheNodeOfTheGpu) {
  if (!fs::exists("/sys/devices/system/node/node0")) GTEST_SKIP() << "this kernel shows no NUMA nodes";
  if (!hwloc_sees_past_a_binding()) GTEST_SKIP() << "hwloc sees one CPU only";
  show_node("0");
  setenv("OMPI_MCA_orte_bound_at_launch", "1", 1);
  EXPECT_EQ(bind_to_numa(kGpu, sysfs_).rfind("NUMA node 0 (CPUs ", 0), 0u);
  std::ifstream file("/sys/devices/system/node/node0/cpulist");
  std::string cpus;
  file >> cpus;
  if (CPU_COUNT(&before_) > 1 && cpus.find_first_of(",-") != std::string::npos) {
    EXPECT_GT(allowed_cpus(), 1);
  }
}

TEST_F(NumaBindingTest, ANodeThatIsNotThereChangesNothing) {
  show_node("4711");
  const int cpus = allowed_cpus();
  EXPECT_CONTAINS(bind_to_numa(kGpu, sysfs_), "not allowed on NUMA node 4711");
  EXPECT_EQ(allowed_cpus(), cpus);
}

}  // namespace
}  // namespace ddptrain
