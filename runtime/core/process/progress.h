#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "runtime/core/process/watch.h"

namespace ddptrain {

/// State of a run that Progress shows.
struct ProgressState {
  std::int64_t steps = 0;  ///< In all; 0: training has not begun.
  std::int64_t steps_per_epoch = 1;
  std::int64_t step = 0;  ///< Finished, on a GPU by the GPU.
  std::string unit;       ///< Such as images.
  double units_per_second = 0.0;
  double steps_per_second = 0.0;  ///< 0: not known yet.
  std::optional<double> loss;
  std::string phase;      ///< The phase in Watch, such as training or evaluation.
  double seconds = 0.0;   ///< In this phase.
  Watch::Part part = {};  ///< How far the phase has come.
};

/// In `width` columns at most.
std::string progress_line(const ProgressState& state, std::size_t width);

/// Where standard error or output of this process ends: at a terminal, also through the mpirun that started it on this
/// host, or elsewhere.
class Terminal {
 public:
  explicit Terminal(int descriptor);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  explicit operator bool() const { return descriptor_ >= 0; }
  std::size_t columns() const;

 private:
  int descriptor_ = -1;  ///< For its size.
};

/// The last line of a terminal says how far the run is. A thread draws it over ten times a second at most. Other text
/// of this process goes through print() and log(), so that the line makes room for it; ranks that do not draw use these
/// too. A file or a pipe gets the text alone.
class Progress {
 public:
  /// `draws`: on one rank of the job.
  Progress(std::shared_ptr<const Watch> watch, bool draws);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// While it lives, the line is shown. Nested: the line goes when the first of them ends, so that what tells of an
  /// error comes after it.
  class [[nodiscard]] Shown {
   public:
    explicit Shown(Progress& progress) : progress_(progress) { progress_.show(); }
    ~Shown() { progress_.hide(); }
    Shown(const Shown&) = delete;
    Shown& operator=(const Shown&) = delete;

   private:
    Progress& progress_;
  };

  bool draws() const { return draws_; }
  /// `step`: where the run begins.
  void set_plan(std::int64_t step, std::int64_t steps, std::int64_t steps_per_epoch, double units_per_step,
                std::string unit);
  void set_loss(double loss);

  /// Whole lines for standard output.
  void print(const std::string& text);
  /// `write` writes whole lines to standard error.
  void log(const std::function<void()>& write);

 private:
  using Clock = std::chrono::steady_clock;

  void show();
  void hide();
  void run();
  void draw();  ///< With the mutex held, as clear().
  void clear();
  void follow_phase();
  void follow_steps();

  const std::shared_ptr<const Watch> watch_;
  const Terminal errors_;
  const Terminal output_;
  const bool draws_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool shown_ = false;
  bool drawn_ = false;
  ProgressState state_;
  double units_per_step_ = 0.0;
  const char* phase_ = nullptr;
  Clock::time_point phase_began_ = Clock::now();
  std::deque<std::pair<Clock::time_point, std::int64_t>> recent_;  ///< Steps that had ended, of the last seconds.
  std::thread thread_;
};

}  // namespace ddptrain
