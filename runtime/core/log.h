#pragma once

#include <memory>
#include <string>

namespace ddptrain {

class Progress;

/// Sets up spdlog's default logger: standard error, lines with time, level and rank. `level`: trace, debug, info, warn,
/// error or off; anything else throws UsageError. Ranks other than 0 log warnings and errors only, unless level is
/// debug or trace. `progress`: which the lines go through; null: none.
void init_logging(const std::string& level, int rank, std::shared_ptr<Progress> progress = nullptr);

}  // namespace ddptrain
