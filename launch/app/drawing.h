#pragma once

#include <string>

namespace ddptrain {

/// Draws what ddptopo's JSON describes, with ddptools/pictures/draw_topology.py beside this program. Files that are
/// empty are not made. Throws UsageError where that cannot be done: no python3, no matplotlib, a file that cannot be
/// written.
void draw_topology(const std::string& json, const std::string& svg, const std::string& png);

}  // namespace ddptrain
