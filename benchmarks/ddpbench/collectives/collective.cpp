#include "benchmarks/ddpbench/collectives/collective.h"

#include <algorithm>
#include <cctype>

#include "runtime/core/error.h"

namespace ddptrain::bench {

namespace {

/// "All_Reduce_perf" as "allreduce".
std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  const std::string suffix = "perf";
  if (letters.ends_with(suffix)) letters.resize(letters.size() - suffix.size());
  return letters;
}

}  // namespace

const std::vector<Collective>& all_collectives() {
  static const std::vector<Collective> all = {
      Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather,  Collective::broadcast,
      Collective::reduce,     Collective::all_to_all,     Collective::send_receive};
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
    case Collective::reduce:
      return "reduce";
    case Collective::all_to_all:
      return "all-to-all";
    case Collective::send_receive:
      return "send-receive";
  }
  fail("unknown collective");
}

std::optional<Collective> collective_named(std::string_view name) {
  const std::string letters = letters_of(name);
  if (letters == "sendrecv") return Collective::send_receive;
  for (const Collective collective : all_collectives()) {
    if (letters == letters_of(name_of(collective))) return collective;
  }
  return std::nullopt;
}

bool adds(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

bool has_root(Collective collective) { return collective == Collective::broadcast || collective == Collective::reduce; }

bool works_in_place(Collective collective) {
  return collective != Collective::all_to_all && collective != Collective::send_receive;
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::all_reduce:
      return 2.0 * (n - 1.0) / n;
    case Collective::reduce_scatter:
    case Collective::all_gather:
    case Collective::all_to_all:
      return (n - 1.0) / n;
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::send_receive:
      return 1.0;
  }
  fail("unknown collective");
}

CollectiveSize collective_size(Collective collective, std::size_t bytes, std::size_t element_size, int ranks) {
  const std::size_t elements = bytes / element_size;
  const auto n = static_cast<std::size_t>(ranks);
  const std::size_t unit = std::max<std::size_t>(16 / element_size, 1);
  const std::size_t share = elements / n / unit * unit;
  const std::size_t all = share * n;
  switch (collective) {
    case Collective::all_reduce:
    case Collective::broadcast:
    case Collective::reduce:
    case Collective::send_receive:
      return {elements, elements, elements, elements * element_size};
    case Collective::reduce_scatter:
      return {all, share, share, all * element_size};
    case Collective::all_gather:
      return {share, all, share, all * element_size};
    case Collective::all_to_all:
      return {all, all, share, all * element_size};
  }
  fail("unknown collective");
}

Bandwidth bandwidth(Collective collective, std::size_t bytes, double seconds, int ranks) {
  const double algbw = static_cast<double>(bytes) / 1e9 / seconds;
  return {algbw, algbw * bus_factor(collective, ranks)};
}

}  // namespace ddptrain::bench
