#include "runtime/train/run/after_training.h"

#include <cstdint>
#include <string>

#include "runtime/comm/agreed_signal.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/train/measure/calibration.h"
#include "runtime/train/measure/step_window.h"
#include "runtime/train/measure/trace.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kTracedSteps = 3;
constexpr double kWindowSeconds = 1.0;

/// Runs windows until `min_seconds` are measured, the first window not counted.
void run_until(double min_seconds, Trainer& trainer, const World& world, WindowTimes& times) {
  const Watch::Phase phase(trainer.device().watch(), "training");
  const auto samples = static_cast<double>(trainer.sampler().samples_per_step());
  while (world.max(min_seconds - times.repeated_seconds()) > 0.0 && !agreed_end_signal(world)) {
    const double step_seconds = samples / times.rate_since(times.windows() - 1);
    const double my_steps = static_cast<double>(steps_per_window(kWindowSeconds, step_seconds));
    const auto steps = static_cast<std::int64_t>(world.max(my_steps));
    times.begin(0);
    trainer.run(static_cast<std::uint64_t>(steps));
    times.end();
    times.add_window(steps);
  }
}

void write_trace(const std::string& path, Trainer& trainer, const World& world) {
  const std::string trace = chrome_trace(world, trace_steps(trainer, kTracedSteps));
  world.agree([&] {
    if (world.rank() == 0) write_file(path, trace + '\n');
  });
}

}  // namespace

void measure_after_training(Trainer& trainer, const World& world, const RunOptions& options, SensorSampler* sensors,
                            WindowTimes& times, RunResult& result) {
  run_until(options.min_seconds, trainer, world, times);
  times.report(result);
  if (!options.trace.empty() && !agreed_end_signal(world)) {
    write_trace(options.trace, trainer, world);
  }
  if (!options.baseline || agreed_end_signal(world)) return;
  const double last_rate = result.epochs.back().samples_per_second;
  const double step_seconds = static_cast<double>(trainer.sampler().samples_per_step()) / last_rate;
  const bool slow_gpu = trainer.device().kind() == DeviceKind::cuda && is_slow_step(step_seconds);
  const CalibrationLimit limit =
      calibration_limit(options.calibration_seconds, result.train_seconds, options.min_seconds, slow_gpu);
  result.calibration = calibrate(trainer, world, last_rate, limit, sensors);
}

}  // namespace ddptrain
