#include "runtime/diagnostics/nccl_variables.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

std::string written(const std::string& name, const std::string& bytes) {
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::ofstream(path) << bytes;
  return path;
}

TEST(NcclVariables, AreTheNamesInTheReadOnlyDataOfAProgram) {
  EXPECT_EQ(std::getenv("NCCL_OF_THIS_TEST_1"), nullptr);
  const auto names = nccl_variables_in("/proc/self/exe");
  EXPECT_TRUE(holds(names, "NCCL_OF_THIS_TEST_1"));
  EXPECT_FALSE(holds(names, fmt::format("NCCL_OF_THIS_{}_2", "TEST")));
  EXPECT_TRUE(std::ranges::is_sorted(names));
}

TEST(NcclVariables, OfNcclItself) {
  if (nccl_library().empty()) GTEST_SKIP() << "a build without CUDA";
  const auto names = nccl_variables_in(nccl_library());
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_LEVEL", "NCCL_SOCKET_IFNAME", "NCCL_DEBUG",
                           "NCCL_HOSTID", "NCCL_CONF_FILE", "NCCL_IB_HCA", "NCCL_BUFFSIZE", "NCCL_NVLS_ENABLE"}) {
    EXPECT_TRUE(holds(names, name)) << name;
  }
  EXPECT_FALSE(holds(names, fmt::format("NCCL_{}", "AGLO")));
  EXPECT_GT(names.size(), 100u);
}

TEST(NcclVariables, AFileThatIsNoProgramHasNone) {
  std::ifstream self("/proc/self/exe", std::ios::binary);
  std::string cut(200, '\0');
  self.read(cut.data(), static_cast<std::streamsize>(cut.size()));
  EXPECT_TRUE(nccl_variables_in(written("cut", cut)).empty());
  EXPECT_TRUE(nccl_variables_in(written("text", "NCCL_ALGO and more")).empty());
  EXPECT_THROW(nccl_variables_in("/no/such/library"), UsageError);
}

TEST(NcclVariables, UnknownOnesAreNamedWithTheNearestName) {
  const std::vector<std::string> known = {"NCCL_ALGO", "NCCL_P2P_LEVEL", "NCCL_PROTO"};
  const std::vector<std::string> unknown = {"NCCL 2.28.3 does not read NCCL_AGLO, did you mean NCCL_ALGO?",
                                            "NCCL 2.28.3 does not read NCCL_FASTRAK_DUMP_COMM_STATS (a plugin may)"};
  EXPECT_EQ(unknown_nccl_settings({{"NCCL_AGLO", "Ring"}, {"NCCL_FASTRAK_DUMP_COMM_STATS", "1"}, {"NCCL_PROTO", "LL"}},
                                  known, "2.28.3"),
            unknown);
  EXPECT_TRUE(unknown_nccl_settings({{"NCCL_AGLO", "Ring"}}, {}, "2.28.3").empty());
}

}  // namespace
}  // namespace ddptrain
