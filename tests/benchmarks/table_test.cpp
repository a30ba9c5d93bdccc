#include "benchmarks/ddpbench/table.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

TEST(Table, AlignsToTheRightUnderHeadingsOfSeveralLines) {
  const Table table({{"size\n(B)", 6}, {"time\n(us)"}, {"#wrong"}});
  EXPECT_EQ(table.header(), "   size time #wrong\n    (B) (us)\n");
  EXPECT_EQ(table.row({"8", "1.25", "0"}), "      8 1.25      0\n");
  EXPECT_EQ(table.row({"123456789", "1", ""}), " 123456789    1\n");
}

TEST(Table, RowsHaveAsManyCellsAsColumns) { EXPECT_THROW(Table({{"a"}}).row({"1", "2"}), Error); }

TEST(DeviceMatrix, LooksLikeThatOfP2pBandwidthLatencyTest) {
  EXPECT_EQ(device_matrix("D\\D", {{1.0, 396.254}, {12345.678, 0.5}}),
            "   D\\D      0      1\n     0   1.00 396.25\n     1 12345.68   0.50\n");
}

TEST(Microseconds, HasFewerDecimalsWhereTheNumberIsLarge) {
  EXPECT_EQ(microseconds(12.3456e-6), "12.35");
  EXPECT_EQ(microseconds(123.456e-6), "123.5");
  EXPECT_EQ(microseconds(12345.6e-6), "12346");
}

}  // namespace
}  // namespace ddptrain::bench
