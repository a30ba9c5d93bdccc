#include "runtime/core/log.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "runtime/core/text.h"

namespace ddptrain {

namespace {

/// %v without characters that control a terminal.
class VisibleText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string text = without_controls({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<VisibleText>(); }
};

}  // namespace

void init_logging(const std::string& level, int rank) {
  using Level = spdlog::level::level_enum;
  const Level wanted = spdlog::level::from_str(level);
  auto logger = std::make_shared<spdlog::logger>("ddptrain", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<VisibleText>('*').set_pattern(fmt::format("[%H:%M:%S.%e] [%^%l%$] [rank {}] %*", rank));
  logger->set_formatter(std::move(formatter));
  logger->set_level(rank == 0 || wanted <= Level::debug ? wanted : std::max(wanted, Level::warn));
  logger->flush_on(Level::warn);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace ddptrain
