#include "runtime/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

using Level = spdlog::level::level_enum;

/// The names of --log-level are among spdlog's.
Level parse_level(const std::string& name) {
  const Level level = spdlog::level::from_str(name);
  if (level != Level::off || name == "off") return level;
  usage_error("--log-level {}: unknown. Use trace, debug, info, warn, error or off.", name);
}

}  // namespace

void init_logging(const std::string& level, int rank) {
  const Level wanted = parse_level(level);
  auto logger = std::make_shared<spdlog::logger>("ddptrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern(fmt::format("[%H:%M:%S.%e] [%^%l%$] [rank {}] %v", rank));
  logger->set_level(rank == 0 || wanted <= Level::debug ? wanted : std::max(wanted, Level::warn));
  logger->flush_on(Level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace ddptrain
