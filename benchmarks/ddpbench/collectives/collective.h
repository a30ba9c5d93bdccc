#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddptrain::bench {

enum class Collective : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  all_to_all,
  send_receive,  ///< Each rank sends to the next one and receives from the one before it.
};

const std::vector<Collective>& all_collectives();
/// Such as reduce-scatter.
std::string name_of(Collective collective);
/// The collective with this name in any spelling: all-reduce, all_reduce, AllReduce, all_reduce_perf (the program of
/// nccl-tests). Nothing for any other name.
std::optional<Collective> collective_named(std::string_view name);
bool adds(Collective collective);      ///< It sums the inputs of the ranks.
bool has_root(Collective collective);  ///< One rank is the only one to send or to receive.
/// The result may replace the input. nccl-tests measures the others out of place only.
bool works_in_place(Collective collective);

/// busbw / algbw on `ranks` ranks, as nccl-tests defines it (doc/PERFORMANCE.md there): all-reduce 2 (n-1)/n,
/// reduce-scatter, all-gather and all-to-all (n-1)/n, broadcast, reduce and send-receive 1.
double bus_factor(Collective collective, int ranks);

/// The input and output of each rank in a benchmark of `bytes` bytes, as in nccl-tests: `bytes` is the size of the
/// larger one, and reduce-scatter, all-gather and all-to-all round the share of a rank down to 16 bytes.
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
