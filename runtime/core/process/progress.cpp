#include "runtime/core/process/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

using std::chrono::duration;

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr auto kRecent = std::chrono::seconds(5);
constexpr const char* kEraseLine = "\r\033[K";
constexpr int kBar = 20;

void write_error(const std::string& text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

std::string bar(double share) {
  const auto filled = static_cast<std::size_t>(kBar * std::clamp(share, 0.0, 1.0));
  return fmt::format("[{:.<{}}]", std::string(filled, '#'), kBar);
}

std::string time_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e12)));
  if (whole >= 86400) return fmt::format("{} d {} h", whole / 86400, whole % 86400 / 3600);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole % 3600 / 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

/// Three digits: 1.23 M.
std::string rate_text(double rate) {
  static constexpr std::array<const char*, 4> kPrefixes = {"", " k", " M", " G"};
  std::size_t prefix = 0;
  for (; rate >= 999.5 && prefix + 1 < kPrefixes.size(); ++prefix) rate /= 1000.0;
  const int decimals = rate < 9.995 ? 2 : rate < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}", rate, prefix == 0 && rate >= 10 ? 0 : decimals, kPrefixes[prefix]);
}

std::string training_text(const ProgressState& s) {
  if (s.step == 0 && s.steps_per_second == 0.0) return fmt::format("  first step {:.0f} s", s.seconds);
  std::string text;
  if (s.loss && std::isfinite(*s.loss)) text += fmt::format("  loss {:.4f}", *s.loss);
  if (s.steps_per_second == 0.0) return text;
  const double left = static_cast<double>(std::max<std::int64_t>(0, s.steps - s.step)) / s.steps_per_second;
  return text + fmt::format("  {} {}/s  {} left", rate_text(s.units_per_second), s.unit, time_text(left));
}

/// mpirun forwards the output of its ranks; its flags can send it to files or mark each line.
bool mpirun_changes_output(pid_t mpirun) {
  std::ifstream file(fmt::format("/proc/{}/cmdline", mpirun), std::ios::binary);
  const std::string words{std::istreambuf_iterator<char>(file), {}};
  using namespace std::string_view_literals;
  constexpr std::array kFlags = {"-output-filename"sv, "-tag-output"sv, "-timestamp-output"sv, "-xml"sv,
                                 "\0--output\0"sv /* of Open MPI 5 */};
  return std::any_of(kFlags.begin(), kFlags.end(),
                     [&](std::string_view flag) { return words.find(flag) != std::string::npos; });
}

std::string terminal_behind(int descriptor) {
  std::string link = fmt::format("/proc/self/fd/{}", descriptor);
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr && std::getenv("OMPI_UNIVERSE_SIZE") != nullptr) {
    if (mpirun_changes_output(getppid())) return {};
    link = fmt::format("/proc/{}/fd/{}", getppid(), descriptor);
  }
  std::error_code error;
  return std::filesystem::read_symlink(link, error).string();
}

}  // namespace

std::string progress_line(const ProgressState& s, std::size_t width) {
  std::string text;
  if (s.steps > 0) {
    const std::int64_t epochs = (s.steps + s.steps_per_epoch - 1) / s.steps_per_epoch;
    const std::int64_t epoch = std::min(epochs, s.step / s.steps_per_epoch + 1);
    text = fmt::format("{} epoch {}/{}  step {}/{}", bar(static_cast<double>(s.step) / static_cast<double>(s.steps)),
                       epoch, epochs, s.step, s.steps);
  }
  if (s.phase == "training" && s.steps > 0) {
    text += training_text(s);
  } else {
    text += fmt::format("{}{}", text.empty() ? "" : "  ", s.phase);
    if (s.part.total > 0) text += fmt::format(" {}/{}", s.part.done, s.part.total);
    text += fmt::format(" {:.0f} s", s.seconds);
  }
  return text.substr(0, width);
}

Terminal::Terminal(int descriptor) {
  const char* type = std::getenv("TERM");
  if (type == nullptr || std::string_view(type) == "dumb") return;
  const std::string path = terminal_behind(descriptor);
  if (path.rfind("/dev/pts/", 0) != 0 && path.rfind("/dev/tty", 0) != 0) return;
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (descriptor_ >= 0 && isatty(descriptor_) != 0) return;
  if (descriptor_ >= 0) ::close(descriptor_);
  descriptor_ = -1;
}

Terminal::~Terminal() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::size_t Terminal::columns() const {
  winsize size{};
  if (ioctl(descriptor_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

Progress::Progress(std::shared_ptr<const Watch> watch, bool draws)
    : watch_(std::move(watch)),
      errors_(STDERR_FILENO),
      output_(STDOUT_FILENO),
      draws_(draws && static_cast<bool>(errors_)) {}

Progress::~Progress() { hide(); }

void Progress::show() {
  if (!draws_) return;
  const std::lock_guard lock(mutex_);
  if (shown_) return;
  shown_ = true;
  thread_ = std::thread([this] { run(); });
}

void Progress::hide() {
  {
    const std::lock_guard lock(mutex_);
    if (!shown_) return;
    shown_ = false;
  }
  wake_.notify_one();
  thread_.join();
  clear();
}

void Progress::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kInterval, [this] { return !shown_; })) draw();
}

void Progress::set_plan(std::int64_t step, std::int64_t steps, std::int64_t steps_per_epoch, double units_per_step,
                        std::string unit) {
  const std::lock_guard lock(mutex_);
  state_.step = step;
  state_.steps = steps;
  state_.steps_per_epoch = steps_per_epoch;
  state_.unit = std::move(unit);
  units_per_step_ = units_per_step;
}

void Progress::set_loss(double loss) {
  const std::lock_guard lock(mutex_);
  state_.loss = loss;
}

void Progress::print(const std::string& text) {
  const std::lock_guard lock(mutex_);
  clear();
  if (output_ && errors_) std::fputs(kEraseLine, stdout);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void Progress::log(const std::function<void()>& write) {
  const std::lock_guard lock(mutex_);
  if (errors_) write_error(kEraseLine);
  drawn_ = false;
  write();
}

void Progress::clear() {
  if (drawn_) write_error(kEraseLine);
  drawn_ = false;
}

void Progress::follow_phase() {
  const char* phase = watch_->phase();
  if (phase == phase_) return;
  phase_ = phase;
  phase_began_ = Clock::now();
  recent_.clear();
  state_.phase = phase;
}

void Progress::follow_steps() {
  if (state_.steps == 0) return;
  // Before its first step a GPU has no count, and measurements after training go on counting.
  state_.step = std::clamp(static_cast<std::int64_t>(watch_->device_steps()), state_.step, state_.steps);
  if (state_.phase != "training") return;
  const Clock::time_point now = Clock::now();
  recent_.emplace_back(now, state_.step);
  while (recent_.size() > 2 && now - recent_[1].first > kRecent && recent_.back().second > recent_[1].second) {
    recent_.pop_front();
  }
  const double seconds = duration<double>(now - recent_.front().first).count();
  const auto steps = static_cast<double>(state_.step - recent_.front().second);
  if (seconds <= 0.0 || steps <= 0.0) return;
  state_.steps_per_second = steps / seconds;
  state_.units_per_second = state_.steps_per_second * units_per_step_;
}

/// The cursor stays at the beginning of the line, so that text that others write takes its place.
void Progress::draw() {
  follow_phase();
  follow_steps();
  state_.seconds = duration<double>(Clock::now() - phase_began_).count();
  state_.part = watch_->part();
  write_error(fmt::format("{}{}\r", kEraseLine, progress_line(state_, errors_.columns() - 1)));
  drawn_ = true;
}

}  // namespace ddptrain
