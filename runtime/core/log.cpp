#include "runtime/core/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

using Level = spdlog::level::level_enum;

Level parse_level(const std::string& name) {
  static constexpr std::array<std::pair<const char*, Level>, 6> kLevels = {{{"trace", Level::trace},
                                                                            {"debug", Level::debug},
                                                                            {"info", Level::info},
                                                                            {"warn", Level::warn},
                                                                            {"error", Level::err},
                                                                            {"off", Level::off}}};
  for (const auto& [known, level] : kLevels) {
    if (name == known) return level;
  }
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
