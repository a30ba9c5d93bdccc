#pragma once

#include <cstdint>
#include <string>

namespace ddptrain {

/// An exchange of a group with the log: see OuterLoop.
struct OuterExchange {
  std::int64_t step = 0;  ///< Steps done when its weights became the outer weights.
  std::int64_t fragment = 0;
  std::uint64_t version = 0;         ///< Of the fragment's outer weights.
  std::uint64_t age = 0;             ///< Of the group's own difference when it was applied.
  std::int64_t steps_in_flight = 0;  ///< Steps since the group's difference was sent.
  double seconds = 0.0;              ///< For which training stood still.
  std::uint64_t bytes_sent = 0;      ///< Since the run began, as the next two.
  std::uint64_t bytes_received = 0;
  std::int64_t skipped = 0;  ///< Entries of the log.
};

struct OuterTotals {
  std::int64_t exchanges = 0;
  double seconds = 0.0;  ///< For which training stood still.
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::int64_t skipped = 0;
  std::string hash;     ///< Of the outer weights.
  bool rounds = false;  ///< The hash does not depend on the order in which differences arrive.
};

}  // namespace ddptrain
