#include "runtime/core/log.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/core/files/descriptor.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// %v on one line, without characters that control a terminal.
class VisibleText final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& line) override {
    const std::string text = one_line({message.payload.data(), message.payload.size()});
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<VisibleText>(); }
};

void write_out(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Messages on standard error, which reaches `terminal`, and the line below them.
class TerminalSink final : public spdlog::sinks::ansicolor_stderr_sink_mt, public StatusLine {
 public:
  explicit TerminalSink(Descriptor terminal) : terminal_(std::move(terminal)) {}
  ~TerminalSink() override { erase(); }

  void log(const spdlog::details::log_msg& message) override {
    const std::lock_guard lock(status_mutex_);
    erase();
    spdlog::sinks::ansicolor_stderr_sink_mt::log(message);
    draw();
  }

  void set(const std::string& text) override {
    const std::lock_guard lock(status_mutex_);
    if (text.empty()) erase();
    text_ = text;
    draw();
  }

  void print(const std::string& text) override {
    const std::lock_guard lock(status_mutex_);
    erase();
    write_out(text);
    draw();
  }

  std::size_t columns() const override {
    constexpr std::size_t kUsual = 80;
    winsize size{};
    const bool known = ioctl(terminal_.get(), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return (known ? size.ws_col : kUsual) - 1;  // a full line would wrap
  }

 private:
  void erase() const {
    if (!text_.empty()) std::fputs("\r\x1b[K", stderr);
  }
  /// The cursor stays at the beginning: messages of other processes write over the line.
  void draw() const {
    if (!text_.empty()) std::fputs(fmt::format("\r{}\x1b[K\r", text_.substr(0, columns())).c_str(), stderr);
  }

  const Descriptor terminal_;
  std::mutex status_mutex_;
  std::string text_;
};

bool starts_under_open_mpi() { return std::getenv("OMPI_COMM_WORLD_RANK") != nullptr; }

bool is_pipe(int stream) {
  struct stat file {};
  return fstat(stream, &file) == 0 && (S_ISFIFO(file.st_mode) || S_ISSOCK(file.st_mode));
}

/// This stream of Open MPI's launcher, if that is a terminal.
Descriptor terminal_of_launcher(int stream) {
  const std::string path = fmt::format("/proc/{}/fd/{}", getppid(), stream);
  Descriptor of_launcher(open(path.c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  return of_launcher && isatty(of_launcher.get()) == 1 ? std::move(of_launcher) : Descriptor();
}

bool are_same_terminal(int one, int other) {
  struct stat first {};
  struct stat second {};
  return fstat(one, &first) == 0 && fstat(other, &second) == 0 && first.st_rdev == second.st_rdev;
}

/// The terminal that standard error reaches: directly, or by Open MPI's launcher, which forwards it through a pipe.
Descriptor terminal_of_log() {
  const char* const kind = std::getenv("TERM");
  if (kind == nullptr || *kind == '\0' || std::string_view(kind) == "dumb") return Descriptor();
  if (isatty(STDERR_FILENO) == 1) return Descriptor(dup(STDERR_FILENO));
  return is_pipe(STDERR_FILENO) && starts_under_open_mpi() ? terminal_of_launcher(STDERR_FILENO) : Descriptor();
}

spdlog::sink_ptr make_sink(int rank) {
  if (rank == 0) {
    if (Descriptor terminal = terminal_of_log()) return std::make_shared<TerminalSink>(std::move(terminal));
  }
  return std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
}

}  // namespace

void init_logging(const std::string& level, int rank) {
  using Level = spdlog::level::level_enum;
  const Level wanted = spdlog::level::from_str(level);
  auto logger = std::make_shared<spdlog::logger>("ddptrain", make_sink(rank));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<VisibleText>('*').set_pattern(fmt::format("[%H:%M:%S.%e] [%^%l%$] [rank {}] %*", rank));
  logger->set_formatter(std::move(formatter));
  logger->set_level(rank == 0 || wanted <= Level::debug ? wanted : std::max(wanted, Level::warn));
  logger->flush_on(Level::warn);
  spdlog::set_default_logger(std::move(logger));
}

StatusLine* status_line() {
  for (const spdlog::sink_ptr& sink : spdlog::default_logger()->sinks()) {
    if (auto* line = dynamic_cast<StatusLine*>(sink.get())) return line;
  }
  return nullptr;
}

/// Open MPI forwards standard output through a pseudo-terminal or a pipe. A script in between has the same one.
bool output_is_on_terminal() {
  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  if (!starts_under_open_mpi() || (!is_terminal && !is_pipe(STDOUT_FILENO))) return is_terminal;
  const Descriptor of_launcher = terminal_of_launcher(STDOUT_FILENO);
  return of_launcher && !(is_terminal && are_same_terminal(STDOUT_FILENO, of_launcher.get()));
}

void print(const std::string& text) {
  StatusLine* const line = status_line();
  line != nullptr ? line->print(text) : write_out(text);
}

}  // namespace ddptrain
