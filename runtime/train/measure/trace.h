#pragma once

#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/timeline.h"

namespace ddptrain {

/// The spans of one rank. Times are of the rank's host.
struct RankTrace {
  int rank = 0;
  std::string host;
  std::vector<TimelineSpan> spans;
};

/// Chrome's trace format (chrome://tracing, https://ui.perfetto.dev): a process per rank with a thread per lane,
/// microseconds from the first span of all.
std::string chrome_trace(const std::vector<RankTrace>& ranks);

/// The spans of all ranks on one clock: hosts are aligned where they leave a barrier, which is as exact as the
/// network's latency; ranks of one host share its clock. On rank 0; empty on others. Collective.
std::vector<RankTrace> gather_trace(const World& world, const std::vector<TimelineSpan>& mine);

/// Seconds from the beginning of a step to the end of its last backward pass, less waits for sums, mean over the steps
/// that Trainer traced but the first one, which others do not come before, unless it is the only one. Error where there
/// is none.
double compute_seconds(const std::vector<TimelineSpan>& spans);

/// Error where that fails (disk full).
void write_trace(const std::string& path, const std::vector<RankTrace>& ranks);

}  // namespace ddptrain
