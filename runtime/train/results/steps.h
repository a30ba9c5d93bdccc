#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "runtime/device/sensors.h"

namespace ddptrain {

/// Results of the steps since the last logged step.
struct StepResult {
  std::int64_t epoch = 0;               ///< From 1.
  std::int64_t step = 0;                ///< Steps done since the start.
  std::int64_t samples = 0;             ///< Samples of all ranks since the start.
  double loss = 0.0;                    ///< Mean.
  double learning_rate = 0.0;           ///< Of the last step.
  std::optional<double> gradient_norm;  ///< Of the last step, before clipping.
  std::optional<double> samples_per_second;
  std::optional<double> step_seconds;
  std::optional<double> exposed_comm_seconds;  ///< Per step; CPUs only.
  std::vector<SensorWindow> gpus;              ///< Per rank; empty without sensors.
};

struct EpochResult {
  std::int64_t epoch = 0;  ///< From 1.
  std::int64_t step = 0;   ///< Steps done since the start.
  double train_loss = 0.0;
  double train_accuracy = 0.0;
  double test_loss = 0.0;
  double test_accuracy = 0.0;
  double samples_per_second = 0.0;                              ///< NaN if this process has run none of its steps.
  double last_loss = std::numeric_limits<double>::quiet_NaN();  ///< The last step's; NaN if another process ran it.
};

}  // namespace ddptrain
