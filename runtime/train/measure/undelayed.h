#pragma once

#include <cstdint>
#include <vector>

namespace ddptrain {

/// What the clocks of a rank showed at the end of a piece of a window of steps, since the beginning of the window.
struct PieceEnd {
  std::uint64_t steps = 0;
  double seconds = 0.0;
  double waited = 0.0;  ///< For a core that ran something else: see CoreWait.
};
using Pieces = std::vector<PieceEnd>;

/// Where in a step the ranks wait for each other.
enum class Meeting : std::uint8_t {
  at_start,  ///< For the sums of the step before. A window begins with all ranks at once and ends with the last one.
  later,     ///< Such as at the end, for the sums of this step.
  /// For messages between hosts. A rank that waits for them lends its core to other programs. The messages would not be
  /// faster otherwise.
  between_hosts,
};

/// Seconds of a step of each rank, as they would be if no rank waited for a core. A wait of one rank also delays those
/// that wait for it, so waits cannot just be subtracted:
///   - Pieces of a window in which no rank waited for a core count as they are. If there are any, the others do not
///   count.
///   - Another piece counts as long as it took the rank that began it last, less this rank's waits for a core: nobody
///     had to wait for the others in it. `by_itself` has the seconds that each rank needs for a step without the
///     others; if the slowest rank needs more than this one, the difference is added. It is too long where the rank
///     waited for others nevertheless, so the lower quartile of the pieces counts.
/// Between hosts, the time of the slowest rank counts as it is. Where ranks meet at the start, a window of one step has
/// none of this: each rank's time less its waits. Otherwise ranks have the same time, the slowest rank's. `ranks`
/// has at least one rank, and all have the same pieces.
std::vector<double> undelayed_steps(const std::vector<Pieces>& ranks, const std::vector<double>& by_itself,
                                    Meeting meeting);

/// Seconds of a step of a rank that waits for no other.
double undelayed_step(const Pieces& pieces);

}  // namespace ddptrain
