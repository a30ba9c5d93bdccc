#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ddptrain::bench {

enum class Collective : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast };

const std::vector<Collective>& all_collectives();
/// Such as reduce-scatter.
std::string name_of(Collective collective);
/// UsageError, which lists the known names, for any other name.
Collective parse_collective(const std::string& name);

/// busbw / algbw on `ranks` ranks, as nccl-tests defines it (doc/PERFORMANCE.md there): all-reduce 2 (n-1)/n,
/// reduce-scatter and all-gather (n-1)/n, broadcast 1.
double bus_factor(Collective collective, int ranks);

/// The input and output of each rank in a benchmark of `bytes` bytes, as in nccl-tests: `bytes` is the size of the
/// larger one, and reduce-scatter and all-gather round the share of a rank down to 16 bytes.
struct CollectiveSize {
  std::size_t send = 0;   ///< Elements of a rank's input.
  std::size_t recv = 0;   ///< Elements of a rank's output.
  std::size_t count = 0;  ///< The argument of the call; the table shows it.
  std::size_t bytes = 0;  ///< Size of the larger one of send and recv.
};
CollectiveSize collective_size(Collective collective, std::size_t bytes, std::size_t element_size, int ranks);

struct Bandwidth {
  double algbw = 0.0;  ///< bytes / time, GB/s (1e9).
  double busbw = 0.0;
};
Bandwidth bandwidth(Collective collective, std::size_t bytes, double seconds, int ranks);

}  // namespace ddptrain::bench
