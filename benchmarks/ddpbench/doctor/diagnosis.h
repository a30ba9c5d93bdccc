#pragma once

#include <string>
#include <vector>

#include "benchmarks/ddpbench/doctor/gpu_links.h"
#include "benchmarks/ddpbench/doctor/halving.h"
#include "benchmarks/ddpbench/doctor/link_probe.h"
#include "runtime/device/sensors.h"

namespace ddptrain::bench {

/// A number that may explain a low rate, if it is another one elsewhere: "SM clock", 345, " MHz".
struct RankFact {
  std::string what;
  double value = 0.0;
  std::string unit;
};

/// Rates that one rank measured.
struct RankRates {
  std::string host;
  int rank = 0;
  std::string gpu;                 ///< PCI bus id; empty on the CPU.
  double gflops = 0.0;             ///< Matrix products, all ranks at once.
  double copy_gb_per_s = 0.0;      ///< CPU: within memory; GPU: from host memory. A rank of each host at a time.
  std::vector<RankFact> facts;     ///< Compared with the facts of other ranks that have the same name.
  std::vector<std::string> notes;  ///< About the rank's host: "load 12 on 8 processors".
};

struct Measured {
  std::vector<RankRates> ranks;  ///< In their order; hosts are numbered by their lowest ranks.
  std::vector<LinkRate> links;   ///< Between the lowest ranks of neighbouring hosts.
  Halving hosts;                 ///< Units: numbers of hosts.
  Halving gpus;                  ///< One set per host. Units: ranks.
};

/// Names of the hosts, by their numbers.
std::vector<std::string> host_names(const std::vector<RankRates>& ranks);
/// The host, or if it has several ranks, "rank 3 on n1 (GPU 0000:1b:00.0)".
std::string name_of(const RankRates& rank, const std::vector<RankRates>& ranks);

/// Lines that name slow ranks, hosts, GPUs and the ways between them, by how much, and what is different there; a
/// single line, which begins with "No slow one", where everything is faster than `tolerance` (such as 0.5) times what
/// is usual. GPUs, which are alike, are named below 90% of the usual matrix products.
std::vector<std::string> diagnosis(const Measured& measured, double tolerance);

/// Facts about a GPU under load, to be compared with other GPUs.
std::vector<RankFact> gpu_facts(const GpuLinks& links, const SensorWindow& load);
/// Faults of a GPU that need no comparison, each with its remedy: PCIe below what GPU and slot allow, clocks held
/// down for heat or power, errors of links. Each line begins with `name`.
std::vector<std::string> gpu_findings(const std::string& name, const GpuLinks& links, const SensorWindow& load);

}  // namespace ddptrain::bench
