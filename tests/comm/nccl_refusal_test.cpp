#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/nccl/refusal.h"
#include "runtime/core/process/scoped_environment.h"

namespace ddptrain {
namespace {

constexpr int kOld = 22803;
constexpr int kNew = 23007;

class NcclRefusal : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::string> names;
    for (char** each = environ; *each != nullptr; ++each) {
      const std::string_view variable = *each;
      if (variable.starts_with("NCCL_")) names.emplace_back(variable.substr(0, variable.find('=')));
    }
    for (const std::string& name : names) environment.set(name, std::nullopt);
  }

  static std::string two_gpus(int version) {
    return nccl_does_not_start(version, {nccl_place(0, "18:00"), nccl_place(0, "2a:00")}, "invalid usage");
  }
  static std::string one_gpu(int version) {
    return nccl_does_not_start(version, {nccl_place(0, "18:00"), nccl_place(0, "18:00")}, "invalid usage");
  }

  ScopedEnvironment environment;
};

/// Also with --share-gpu, which sets NCCL_MULTI_RANK_GPU_ENABLE wherever it is given.
TEST_F(NcclRefusal, ASettingIsNotTakenForASharedGpu) {
  environment.set("NCCL_ALGO", "nonsense");
  environment.set("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  EXPECT_EQ(two_gpus(kOld),
            "NCCL does not start with NCCL_ALGO=nonsense: invalid usage. Change these variables, or unset them.");
  EXPECT_EQ(two_gpus(kNew), two_gpus(kOld));
  EXPECT_EQ(one_gpu(kNew), two_gpus(kOld));
}

TEST_F(NcclRefusal, ASharedGpuIsToldFromTheRanksDevices) {
  EXPECT_EQ(one_gpu(kOld),
            "NCCL 2.28.3 takes one rank per GPU; several need NCCL 2.30 or newer. Use --comm mpi, or a newer NCCL.");
  EXPECT_EQ(one_gpu(kNew), "NCCL does not start: invalid usage. NCCL_DEBUG=INFO shows more.");
}

/// GPUs of two hosts may have the same address. NCCL_HOSTID makes two hosts of one.
TEST_F(NcclRefusal, GpusOfTwoHostsAreNotShared) {
  EXPECT_NE(nccl_place(0, "18:00"), nccl_place(1, "18:00"));
  environment.set("NCCL_HOSTID", "a");
  const std::string a = nccl_place(0, "18:00");
  environment.set("NCCL_HOSTID", "b");
  EXPECT_NE(nccl_place(0, "18:00"), a);
}

TEST_F(NcclRefusal, AllSettingsOfTheUserAreNamed) {
  EXPECT_EQ(nccl_settings(), "");
  for (const char* name : {"NCCL_SOCKET_IFNAME", "NCCL_DEBUG_FILE", "NCCL_VERSION", "NCCL_ALGO", "MY_NCCL_ALGO"}) {
    environment.set(name, "x");
  }
  environment.set("NCCL_GRAPH_REGISTER", "0");  // by this program
  EXPECT_EQ(nccl_settings(), "NCCL_ALGO=x, NCCL_SOCKET_IFNAME=x");
  environment.set("NCCL_GRAPH_REGISTER", "1");
  EXPECT_EQ(nccl_settings(), "NCCL_ALGO=x, NCCL_GRAPH_REGISTER=1, NCCL_SOCKET_IFNAME=x");
}

}  // namespace
}  // namespace ddptrain
