#pragma once

#include <string>

namespace ddptrain {

/// Sets up spdlog's default logger: standard error, lines with time, level and rank. `level`: trace, debug, info, warn,
/// error or off. Ranks other than 0 log warnings and errors only, unless level is debug or trace.
void init_logging(const std::string& level, int rank);

}  // namespace ddptrain
