#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/device/sensors.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/train/measure/calibration.h"
#include "runtime/train/measure/sensor_report.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/report/description.h"
#include "runtime/train/report/results.h"
#include "runtime/train/run/meter.h"

namespace ddptrain {

struct RunInfo {
  std::string version;
  Description description;
  std::string device_name;
  std::string topology;  ///< See topology_label().
  int nodes = 1;
  int local_world_size = 1;
  int shared_gpus = 0;        ///< GPUs of the job if ranks share them; 0: each rank has its own device.
  int zero = 0;               ///< Level of ZeRO.
  bool baseline = true;       ///< The single-rank baseline is measured if possible.
  bool other_tensor = false;  ///< The run was resumed, and earlier steps had another --tp.
  GradientPath gradient_path;
  std::map<std::string, std::int64_t> shape;  ///< Sizes of the model, such as its layers and width.
  std::int64_t epochs = 0;
  std::int64_t steps = 0;
  std::int64_t resumed_at = 0;                          ///< Steps that were done before this run.
  std::vector<std::pair<std::string, double>> startup;  ///< Seconds of each phase before the first step.
  PeakRate peak;                                        ///< The peak of one device.
  std::map<std::string, std::string> environment;       ///< NCCL_* variables.
  std::map<std::string, std::string> configuration;     ///< Value of every flag, by name.
};

struct RunResult {
  std::vector<EpochResult> epochs;
  Rate rate;
  double startup_seconds = 0.0;  ///< From the start of the process to the end of the first step.
  double train_seconds = 0.0;    ///< The time of all steps.
  /// Share of the time of steps in which ranks waited for other pipeline stages, mean over the ranks. Empty on GPUs,
  /// where the host does not wait.
  std::optional<double> waits_for_stages;
  std::optional<double> in_split_layers;     ///< The same for collectives of ranks that split layers.
  std::optional<double> waits_for_replicas;  ///< The same for gradients and weights of other replicas.
  std::uint64_t nonfinite_steps = 0;         ///< Steps that were skipped because of a NaN or infinite value.
  std::string parameter_hash;
  std::optional<Calibration> calibration;
  std::optional<NcclUsage> nccl;
  ClockWindows clocks;                          ///< The windows of training.
  std::vector<SensorWindow> gpus;               ///< Per rank: its sensors during training. Empty without sensors.
  std::optional<CheckpointTotals> checkpoints;  ///< Empty if no checkpoints are asked for.
  int end_signal = 0;  ///< After the last step, it asked for the end, and measurements were left out. 0: none.
};

/// The path's text and reason in one line.
std::string described(const GradientPath& path);

/// A file of JSON lines, written as they come.
class MetricsFile {
 public:
  /// Creates or truncates the file, or appends after its last whole line. UsageError if it cannot be written.
  explicit MetricsFile(const std::string& path, bool append = false);
  /// Adds the time and writes the line. Bytes that are not UTF-8 are replaced. Error if writing fails (disk full).
  void write(nlohmann::ordered_json line);

 private:
  std::string path_;
  std::ofstream file_;
};

/// Writes the results of a run to standard output, the log and the file of --metrics. For rank 0.
class Report {
 public:
  /// `metrics`: null if no file is asked for.
  explicit Report(RunInfo info, MetricsFile* metrics = nullptr);

  void start();
  void restart(std::int64_t step, const std::string& checkpoint);
  void step(const StepResult& result);
  void epoch(const EpochResult& result);
  void evaluation(std::int64_t step, double loss, double accuracy);  ///< Within an epoch.
  void checkpoint(const WrittenCheckpoint& checkpoint);
  void interrupted(std::int64_t step, const std::string& signal, const std::string& checkpoint);
  void summary(const RunResult& result);

 private:
  double units(double samples) const { return samples * static_cast<double>(run().units_per_sample); }
  std::string capital_unit() const;
  void write(nlohmann::ordered_json line) const;
  bool has_text() const { return has_perplexity(run().unit); }
  const Description& run() const { return info_.description; }

  RunInfo info_;
  MetricsFile* metrics_;
};

}  // namespace ddptrain
