#include "benchmarks/ddpbench/collectives/nccl_choices.h"

#include <gtest/gtest.h>

#include <sstream>

namespace ddptrain::bench {
namespace {

constexpr const char* kLog = R"(host:10:10 [0] NCCL INFO NCCL version 2.28.3+cuda13.0
host:10:11 [0] NCCL INFO 4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 8 p2p channels per peer
host:10:12 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:10:10 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}
host:10:10 [0] NCCL INFO AllReduce: 65536 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}
host:10:10 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..3}
host:10:10 [0] NCCL INFO Broadcast: 1024 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
)";

Json result_of_sizes(Collective collective) {
  Json result = {{"results", Json::array()}};
  for (const std::int64_t bytes : {1024, 65536, 1048576, 2097152}) result["results"].push_back({{"bytes", bytes}});
  std::istringstream log(kLog);
  add_nccl(result, read_nccl_log(log), collective);
  return result;
}

TEST(NcclChoices, AreThoseOfTheCollectiveAndTheSize) {
  const Json result = result_of_sizes(Collective::all_reduce);
  EXPECT_EQ(result["nccl"], Json({{"version", "2.28.3"}, {"transport", "P2P/CUMEM"}, {"channels", 4}}));
  const Json tree = {{"bytes", 1048576}, {"algorithm", "Tree"}, {"protocol", "Simple"}, {"channels", 4}};
  EXPECT_EQ(result["results"][2], tree);
  EXPECT_EQ(result["results"][0]["channels"], 1);
  EXPECT_FALSE(result["results"][3].contains("algorithm"));
  EXPECT_EQ(result_of_sizes(Collective::broadcast)["results"][0]["protocol"], "Simple");
  EXPECT_FALSE(result_of_sizes(Collective::all_gather)["results"][0].contains("protocol"));
}

TEST(NcclChoices, InWords) {
  EXPECT_EQ(choices_text(result_of_sizes(Collective::all_reduce)["results"]),
            "Ring LL to 64 KiB, Tree Simple to 1 MiB");
  EXPECT_EQ(choices_text(Json::array()), "");
}

}  // namespace
}  // namespace ddptrain::bench
