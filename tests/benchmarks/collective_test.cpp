#include "benchmarks/ddpbench/collectives/collective.h"

#include <gtest/gtest.h>

namespace ddptrain::bench {
namespace {

TEST(Collective, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 2), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 8), 0.875);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 8), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce, 8), 1.0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_to_all, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::send_receive, 8), 1.0);
}

TEST(Collective, BandwidthCountsGigabytesOf1e9) {
  const Bandwidth bw = bandwidth(Collective::all_reduce, 4'000'000'000, 0.02, 4);
  EXPECT_DOUBLE_EQ(bw.algbw, 200.0);
  EXPECT_DOUBLE_EQ(bw.busbw, 300.0);
}

TEST(Collective, SizesAreThoseOfNcclTests) {
  const CollectiveSize reduce = collective_size(Collective::all_reduce, 100, 4, 3);
  EXPECT_EQ(reduce.send, 25u);
  EXPECT_EQ(reduce.recv, 25u);
  EXPECT_EQ(reduce.bytes, 100u);
  const CollectiveSize gather = collective_size(Collective::all_gather, 100, 4, 3);  // 8 elements each, in fours
  EXPECT_EQ(gather.send, 8u);
  EXPECT_EQ(gather.recv, 24u);
  EXPECT_EQ(gather.count, 8u);
  EXPECT_EQ(gather.bytes, 96u);
  const CollectiveSize scatter = collective_size(Collective::reduce_scatter, 100, 2, 3);  // 16 each, in eights
  EXPECT_EQ(scatter.send, 48u);
  EXPECT_EQ(scatter.recv, 16u);
  EXPECT_EQ(scatter.bytes, 96u);
  EXPECT_EQ(collective_size(Collective::reduce_scatter, 8, 4, 2).count, 0u);
  const CollectiveSize exchange = collective_size(Collective::all_to_all, 100, 4, 3);  // 8 elements for each rank
  EXPECT_EQ(exchange.send, 24u);
  EXPECT_EQ(exchange.recv, 24u);
  EXPECT_EQ(exchange.count, 8u);
  EXPECT_EQ(exchange.bytes, 96u);
  EXPECT_EQ(collective_size(Collective::send_receive, 100, 4, 3).count, 25u);
  EXPECT_EQ(collective_size(Collective::reduce, 100, 4, 3).bytes, 100u);
}

TEST(Collective, NamesAreKnownInTheSpellingsOfOthers) {
  for (const Collective collective : all_collectives()) EXPECT_EQ(collective_named(name_of(collective)), collective);
  for (const char* name : {"alltoall", "AllToAll", "all_to_all", "alltoall_perf"}) {
    EXPECT_EQ(collective_named(name), Collective::all_to_all) << name;
  }
  for (const char* name : {"sendrecv", "send/receive", "send_recv", "sendrecv_perf"}) {
    EXPECT_EQ(collective_named(name), Collective::send_receive) << name;
  }
  EXPECT_EQ(collective_named("all_reduce_perf"), Collective::all_reduce);
  EXPECT_EQ(collective_named("gather"), std::nullopt);
  EXPECT_EQ(collective_named(""), std::nullopt);
}

}  // namespace
}  // namespace ddptrain::bench
