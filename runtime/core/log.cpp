#include "runtime/core/log.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace ddptrain {

void init_logging(const std::string& level, int rank) {
  using Level = spdlog::level::level_enum;
  const Level wanted = spdlog::level::from_str(level);
  auto logger = std::make_shared<spdlog::logger>("ddptrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern(fmt::format("[%H:%M:%S.%e] [%^%l%$] [rank {}] %v", rank));
  logger->set_level(rank == 0 || wanted <= Level::debug ? wanted : std::max(wanted, Level::warn));
  logger->flush_on(Level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace ddptrain
