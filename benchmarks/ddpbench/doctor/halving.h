#pragma once

#include <functional>
#include <vector>

/// Which host, GPU or link makes collectives slow, by all-reduces over ever smaller sets. Units are hosts, or the ranks
/// of a host; here they are numbers.

namespace ddptrain::bench {

struct SetRate {
  std::vector<int> units;
  double gb_per_s = 0.0;  ///< Bus bandwidth of their all-reduce.
};

/// A unit with which every all-reduce is slow, or the way between two sets of units that are fast on their own.
struct SlowPart {
  std::vector<int> units;
  std::vector<int> others;  ///< Empty: `units` is the slow unit.
  double gb_per_s = 0.0;
  double usual = 0.0;  ///< The rate that it is compared with.
};

struct Halving {
  std::vector<SetRate> sets;  ///< All that were measured, in order.
  std::vector<SlowPart> slow;
};

/// Rates of disjoint sets of units, measured at the same time.
using MeasureSets = std::function<std::vector<double>(const std::vector<std::vector<int>>&)>;

/// Measures each of `groups` (disjoint, alike), its halves, their halves and so on down to pairs; then each unit of a
/// slow pair, and each that is left without a pair, with units of fast pairs. Slow is below `tolerance` (such as 0.5)
/// times the usual rate, which is the upper quartile of pairs: slow parts are found if they are fewer than the others.
/// A set that seems slow is measured up to three times, and the best rate counts. If a set is slower than its halves,
/// the way between them is slow, and it is narrowed down in the same manner. Two units alone cannot be compared.
Halving halve(const std::vector<std::vector<int>>& groups, double tolerance, const MeasureSets& measure);

}  // namespace ddptrain::bench
