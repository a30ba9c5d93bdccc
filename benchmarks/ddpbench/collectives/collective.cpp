#include "benchmarks/ddpbench/collectives/collective.h"

#include <algorithm>

#include "runtime/core/error.h"

namespace ddptrain::bench {

const std::vector<Collective>& all_collectives() {
  static const std::vector<Collective> all = {Collective::all_reduce, Collective::reduce_scatter,
                                              Collective::all_gather, Collective::broadcast};
  return all;
}

std::string name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all-reduce";
    case Collective::reduce_scatter:
      return "reduce-scatter";
    case Collective::all_gather:
      return "all-gather";
    case Collective::broadcast:
      return "broadcast";
  }
  fail("unknown collective");
}

Collective parse_collective(const std::string& name) {
  std::vector<std::string> names;
  for (const Collective collective : all_collectives()) {
    names.push_back(name_of(collective));
    if (names.back() == name) return collective;
  }
  usage_error("--op {}: give one of {}", name, fmt::join(names, ", "));
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::all_reduce:
      return 2.0 * (n - 1.0) / n;
    case Collective::reduce_scatter:
    case Collective::all_gather:
      return (n - 1.0) / n;
    case Collective::broadcast:
      return 1.0;
  }
  fail("unknown collective");
}

CollectiveSize collective_size(Collective collective, std::size_t bytes, std::size_t element_size, int ranks) {
  const std::size_t elements = bytes / element_size;
  const auto n = static_cast<std::size_t>(ranks);
  if (collective == Collective::all_reduce || collective == Collective::broadcast) {
    return {elements, elements, elements, elements * element_size};
  }
  const std::size_t unit = std::max<std::size_t>(16 / element_size, 1);
  const std::size_t share = elements / n / unit * unit;
  const std::size_t all = share * n;
  if (collective == Collective::all_gather) return {share, all, share, all * element_size};
  return {all, share, share, all * element_size};
}

Bandwidth bandwidth(Collective collective, std::size_t bytes, double seconds, int ranks) {
  const double algbw = static_cast<double>(bytes) / 1e9 / seconds;
  return {algbw, algbw * bus_factor(collective, ranks)};
}

}  // namespace ddptrain::bench
