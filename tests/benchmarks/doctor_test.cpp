#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "benchmarks/ddpbench/doctor/diagnosis.h"
#include "benchmarks/ddpbench/doctor/host_state.h"
#include "tests/support/temp_folder.h"

namespace ddptrain::bench {
namespace {

/// Hosts n1, n2 ... with a rank each.
std::vector<RankRates> hosts(int count) {
  std::vector<RankRates> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back({fmt::format("n{}", i + 1), i, "", 100.0, 20.0, {}, {}});
  return hosts;
}

/// Hosts with as many GPUs.
std::vector<RankRates> gpus(int hosts, int per_host) {
  std::vector<RankRates> ranks;
  for (int rank = 0; rank < hosts * per_host; ++rank) {
    ranks.push_back({fmt::format("n{}", rank / per_host + 1),
                     rank,
                     fmt::format("0000:{:02x}:00.0", 16 * (rank % per_host + 1)),
                     700'000.0,
                     50.0,
                     {{"SM clock", 1980.0 - rank, " MHz"}, {"PCIe lanes", 16, ""}},
                     {}});
  }
  return ranks;
}

/// Both ways between neighbours in a ring, 10 GB/s each.
std::vector<LinkRate> ring(int count) {
  std::vector<LinkRate> links;
  for (int i = 0; i < (count == 2 ? 1 : count); ++i) {
    links.push_back({i, (i + 1) % count, 10.0, 20.0});
    links.push_back({(i + 1) % count, i, 10.0, 20.0});
  }
  return links;
}

std::vector<LinkRate> slowed(int count, int from, int to) {
  std::vector<LinkRate> links = ring(count);
  for (LinkRate& link : links) {
    if ((from < 0 || link.from == from) && (to < 0 || link.to == to)) link.gb_per_s = 1.0;
  }
  return links;
}

void expect_only(const std::vector<std::string>& lines, const std::string& begin) {
  ASSERT_EQ(lines.size(), 1u) << fmt::format("{}", fmt::join(lines, "\n"));
  EXPECT_EQ(lines[0].rfind(begin, 0), 0u) << lines[0];
}

TEST(Doctor, NothingIsSlow) {
  for (const int count : {1, 2, 3, 8}) {
    expect_only(diagnosis({hosts(count), count == 1 ? std::vector<LinkRate>{} : ring(count), {}, {}}, 0.5),
                "No slow one: no host, rank or link is below 50% of what is usual");
  }
  expect_only(diagnosis({gpus(2, 4), {}, {}, {}}, 0.5), "No slow one: no host, GPU or link");
}

TEST(Doctor, HostsAndWaysThatAreSlow) {
  for (const int count : {2, 3, 4, 7}) {
    expect_only(diagnosis({hosts(count), slowed(count, 1, -1), {}, {}}, 0.5),
                "n2 is slow: it sends at 1 GB/s, 10% of what is usual (10)");
    if (count == 2) continue;  // its way back is the only other one
    expect_only(diagnosis({hosts(count), slowed(count, -1, 1), {}, {}}, 0.5), "n2 is slow: it receives at 1 GB/s");
  }
  std::vector<LinkRate> links = ring(5);
  for (LinkRate& link : links) {
    if (link.from == 3 || link.to == 3) link.gb_per_s = 2.0;
  }
  expect_only(diagnosis({hosts(5), links, {}, {}}, 0.5), "n4 is slow: it sends and receives at 2 GB/s");
  expect_only(diagnosis({hosts(4), slowed(4, 1, 2), {}, {}}, 0.5), "The way from n2 to n3 is slow: 1 GB/s, 10%");
}

TEST(Doctor, ProcessorAndMemory) {
  auto slow = hosts(3);
  slow[2].gflops = 30.0;
  slow[2].notes = {"load 12 on 8 processors"};
  for (RankRates& rank : slow) rank.facts = {{"time on a processor", rank.rank == 2 ? 31.0 : 97.0, "%"}};
  expect_only(diagnosis({slow, ring(3), {}, {}}, 0.5),
              "n3 is slow: it computes at 30 GFLOP/s, 30% of what is usual (100). Different there: time on a processor "
              "31%, and 97% elsewhere; load 12");
  slow = hosts(2);
  slow[0].copy_gb_per_s = 5.0;
  expect_only(diagnosis({slow, ring(2), {}, {}}, 0.5), "n1 is slow: it copies memory at 5 GB/s");
}

TEST(Doctor, RanksOfAHostAreTold) {
  std::vector<RankRates> ranks = hosts(4);
  for (RankRates& rank : ranks) rank.host = "n1";
  ranks[2].gflops = 10.0;
  expect_only(diagnosis({ranks, {}, {}, {}}, 0.5), "rank 2 on n1 is slow: it computes at 10 GFLOP/s, 10%");
}

TEST(Doctor, GpuThatIsSlowAndWhatIsDifferentThere) {
  auto slow = gpus(2, 4);
  slow[5].gflops = 0.85 * slow[5].gflops;
  slow[5].facts[0].value = 1200.0;
  expect_only(diagnosis({slow, {}, {}, {}}, 0.5),
              "rank 5 on n2 (GPU 0000:20:00.0) is slow: it computes at 5.95e+05 GFLOP/s, 85% of what is usual (7e+05). "
              "Different there: SM clock 1200 MHz, and 1976 MHz elsewhere");
  slow = gpus(2, 4);
  slow[7].copy_gb_per_s = 12.0;
  slow[7].facts[1].value = 4;
  expect_only(diagnosis({slow, {}, {}, {}}, 0.5),
              "rank 7 on n2 (GPU 0000:40:00.0) is slow: it copies from host memory at 12 GB/s, 24% of what is usual "
              "(50). Different there: PCIe lanes 4, and 16 elsewhere");
}

TEST(Doctor, SlowHostsInCollectives) {
  Measured measured{hosts(4), {}, {}, {}};
  measured.ranks[1].notes = {"3 network errors"};
  measured.hosts.slow = {{{1}, {}, 1.0, 10.0}};
  expect_only(diagnosis(measured, 0.5),
              "n2 is slow: all-reduces with it run at 1 GB/s, 10% of what is usual (10). Different there: 3 network "
              "errors");
  measured.hosts.slow = {{{0, 1}, {2, 3}, 1.0, 10.0}};
  expect_only(
      diagnosis(measured, 0.5),
      "The way between n1, n2 and n3, n4 is slow: all-reduces over it run at 1 GB/s, 10% of what is usual (10)");
}

TEST(Doctor, SlowGpusInCollectives) {
  Measured measured{gpus(2, 4), {}, {}, {}};
  measured.hosts.slow = {{{1}, {}, 1.0, 10.0}};
  measured.gpus.slow = {{{6}, {}, 20.0, 300.0}};
  const auto lines = diagnosis(measured, 0.5);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0], "n2 is slow: all-reduces with it run at 1 GB/s, 10% of what is usual (10)");
  EXPECT_EQ(lines[1],
            "rank 6 on n2 (GPU 0000:30:00.0) is slow: all-reduces with it run at 20 GB/s, 7% of what is usual (300)");
}

TEST(Doctor, FindingsOfAGpu) {
  GpuLinks links{5, 5, 16, 16, 0, 18, 0, 1980};
  SensorWindow load;
  for (int i = 0; i < 4; ++i)
    load.add(SensorReading{.sm_mhz = 1980, .celsius = 60, .throttle_reasons = 1 << 2});  // power cap: usual
  EXPECT_TRUE(gpu_findings("n1, GPU 0", links, load).empty());
  EXPECT_TRUE(gpu_findings("n1, GPU 0", {}, {}).empty());  // nothing is reported

  links.pcie_width = 4;
  links.nvlink_errors = 12;
  load.add(SensorReading{.sm_mhz = 400, .celsius = 92, .throttle_reasons = 1 << 6});
  const auto lines = gpu_findings("n1, GPU 0", links, load);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].rfind("n1, GPU 0: its PCIe link runs as generation 5 x4 under load, and could as 5 x16. ", 0), 0u);
  EXPECT_EQ(lines[1].rfind("n1, GPU 0: its clock is held down (hw_thermal_slowdown) in 20% of readings", 0), 0u);
  EXPECT_EQ(lines[2].rfind("n1, GPU 0: 12 errors of its NVLinks", 0), 0u);
  links.pcie_width = 16;
  links.pcie_generation = 1;
  EXPECT_EQ(gpu_findings("n", links, {}).size(), 2u);
}

TEST(Doctor, FactsOfAGpu) {
  SensorWindow load;
  load.add(SensorReading{.sm_mhz = 1900, .throttle_reasons = 1 << 2});
  load.add(SensorReading{.sm_mhz = 1700});
  std::vector<std::string> texts;
  for (const RankFact& fact : gpu_facts({.pcie_generation = 5, .nvlinks = 18}, load)) {
    if (fact.value != 0.0) texts.push_back(fmt::format("{} {:g}{}", fact.what, fact.value, fact.unit));
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"SM clock 1800 MHz", "PCIe generation 5", "NVLinks 18",
                                             "clock held down by sw_power_cap in 50% of readings"}));
  EXPECT_TRUE(gpu_facts({}, {}).empty());
}

TEST(HostState, DataAreComparedByNamesSizesAndContents) {
  const tests::TempFolder temporary;
  const std::filesystem::path folder = temporary.path();
  std::filesystem::create_directories(folder / "train");
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder / name) << text; };
  write("train/images", "images");
  write("labels", "labels");
  write("empty", "");
  const HostFact before = data_fact(folder);
  EXPECT_EQ(before.what, "the data in " + folder.string());
  EXPECT_EQ(before.value.rfind("3 files of 12 bytes (XXH3 ", 0), 0u) << before.value;
  EXPECT_EQ(data_fact(folder).value, before.value);
  write("labels", "labelz");
  EXPECT_NE(data_fact(folder).value, before.value);
  EXPECT_EQ(data_fact(folder / "labels").value.rfind("1 files of 6 bytes", 0), 0u);
  write("labels", "labels");
  std::filesystem::rename(folder / "labels", folder / "label");
  EXPECT_NE(data_fact(folder).value, before.value);
  EXPECT_EQ(data_fact(folder / "nothing").value, "missing");
}

}  // namespace
}  // namespace ddptrain::bench
