#pragma once

#include <string>
#include <vector>

#include "runtime/comm/world.h"
#include "runtime/device/timeline.h"

namespace ddptrain {

/// On rank 0, the spans of all ranks in Chrome's format (chrome://tracing, https://ui.perfetto.dev): a process per rank
/// with a thread per lane. Times are microseconds since the first span. The clocks of hosts are aligned at the end of a
/// barrier, to within the latency of the network. Collective.
std::string chrome_trace(const World& world, const std::vector<TimelineSpan>& mine);

/// Seconds from the beginning of a step to the end of its last backward pass, without waits for reductions: the mean
/// over the traced steps. The first step is left out if there are others, because no step precedes it. Error without
/// steps.
double compute_seconds(const std::vector<TimelineSpan>& spans);

}  // namespace ddptrain
