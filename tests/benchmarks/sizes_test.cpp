#include "benchmarks/ddpbench/sizes.h"

#include <gtest/gtest.h>

#include "runtime/core/error.h"
#include "tests/support/says.h"

namespace ddptrain::bench {
namespace {

using Sizes = std::vector<std::uint64_t>;

TEST(ParseSize, ReadsUnitsOf1024And1000) {
  EXPECT_EQ(parse_size("-b", "8"), 8u);
  EXPECT_EQ(parse_size("-b", "8B"), 8u);
  EXPECT_EQ(parse_size("-b", "64K"), 65536u);
  EXPECT_EQ(parse_size("-b", "1.5M"), 1572864u);
  EXPECT_EQ(parse_size("-b", "16G"), 17179869184u);
  EXPECT_EQ(parse_size("-b", "4GB"), 4000000000u);
  EXPECT_EQ(parse_size("-b", "160MB"), 160000000u);
  EXPECT_EQ(parse_size("-b", "2GiB"), 2147483648u);
  EXPECT_EQ(parse_size("-b", "0"), 0u);
  EXPECT_EQ(parse_size("-b", "1024G"), 1099511627776u);
  EXPECT_EQ(parse_size("-b", "1T"), 1099511627776u);
}

TEST(ParseSize, TakesUnitsInAnyCase) {
  for (const char* text : {"32k", "32K", "32kib", "32KIB", "32Kib", "32768b"}) {
    EXPECT_EQ(parse_size("-b", text), 32768u) << text;
  }
  for (const char* text : {"4kb", "4Kb", "4kB", "4KB"}) EXPECT_EQ(parse_size("-b", text), 4000u) << text;
  EXPECT_EQ(parse_size("-b", "1m"), 1048576u);
  EXPECT_EQ(parse_size("-b", "1.5mb"), 1500000u);
  EXPECT_EQ(parse_size("-e", "16g"), 17179869184u);
  EXPECT_EQ(parse_size("-e", "4gb"), 4000000000u);
  EXPECT_EQ(parse_size("-e", "2gIb"), 2147483648u);
}

TEST(ParseSize, RefusesEverythingElseNamingTheFlag) {
  for (const char* text : {"",    "K",    "1x", "2T",  "-8",  "+8",  "1e3", "0x8",   "1..5K",
                           "1.3", " 8",   "8 ", "8 K", "K8",  "nan", "inf", "1025G", "99999999999999999999999999",
                           ".",   "4kbb", "4i", "4bk", "4mbi"}) {
    EXPECT_CONTAINS(error_message([&] { parse_size("--begin", text); }), "--begin") << text;
  }
}

TEST(FormatSize, TakesTheLargestUnitThatFits) {
  EXPECT_EQ(format_size(8), "8 B");
  EXPECT_EQ(format_size(65536), "64 KiB");
  EXPECT_EQ(format_size(1572864), "1.5 MiB");
  EXPECT_EQ(format_size(4000000000), "4 GB");
  EXPECT_EQ(format_size(160000000), "160 MB");
  EXPECT_EQ(format_size(1001), "1001 B");
}

TEST(SizeSweep, MultipliesUpToTheEnd) {
  EXPECT_EQ(size_sweep(8, 64, 2), (Sizes{8, 16, 32, 64}));
  EXPECT_EQ(size_sweep(8, 63, 2), (Sizes{8, 16, 32}));
  EXPECT_EQ(size_sweep(5, 5, 10), (Sizes{5}));
  EXPECT_EQ(size_sweep(1, 1099511627776u, 1000000000u), (Sizes{1, 1000000000}));
  EXPECT_THROW(size_sweep(0, 8, 2), UsageError);
  EXPECT_THROW(size_sweep(16, 8, 2), UsageError);
  EXPECT_THROW(size_sweep(8, 16, 1), UsageError);
}

TEST(SizeSteps, AddUpToTheEnd) {
  EXPECT_EQ(size_steps(8, 32, 8), (Sizes{8, 16, 24, 32}));
  EXPECT_EQ(size_steps(8, 33, 12), (Sizes{8, 20, 32}));
  EXPECT_EQ(size_steps(5, 5, 10), (Sizes{5}));
  EXPECT_THROW(size_steps(0, 8, 2), UsageError);
  EXPECT_THROW(size_steps(16, 8, 2), UsageError);
  EXPECT_THROW(size_steps(8, 16, 0), UsageError);
  EXPECT_THROW(size_steps(8, 1099511627776u, 1), UsageError);
}

TEST(OneTwoFive, EndsWithTheLast) {
  EXPECT_EQ(one_two_five(1), (Sizes{1}));
  EXPECT_EQ(one_two_five(2), (Sizes{1, 2}));
  EXPECT_EQ(one_two_five(10), (Sizes{1, 2, 5, 10}));
  EXPECT_EQ(one_two_five(1000), (Sizes{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000}));
  EXPECT_EQ(one_two_five(37), (Sizes{1, 2, 5, 10, 20, 37}));
}

}  // namespace
}  // namespace ddptrain::bench
