#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/files/descriptor.h"
#include "runtime/device/peak_rate.h"
#include "runtime/train/report/description.h"
#include "runtime/train/report/perplexity.h"
#include "runtime/train/results/checkpoints.h"
#include "runtime/train/results/gradient_path.h"
#include "runtime/train/results/run_result.h"
#include "runtime/train/results/sampled_text.h"
#include "runtime/train/results/steps.h"

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

/// The path's text and reason in one line.
std::string described(const GradientPath& path);

/// A file of JSON lines, written as they come.
class MetricsFile {
 public:
  /// Creates or truncates the file, or appends after its last whole line. UsageError if it cannot be written. Error if
  /// another MetricsFile, of any process, writes it: one that was killed may take a moment to end.
  explicit MetricsFile(const std::string& path, bool append = false);
  /// Adds the time and writes the line. Bytes that are not UTF-8 are replaced. Error if writing fails (disk full).
  void write(nlohmann::ordered_json line);

 private:
  std::string path_;
  Descriptor lock_;
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
  void samples(std::int64_t step, const std::vector<SampledText>& samples);
  void checkpoint(const WrittenCheckpoint& checkpoint);
  void exchange(const OuterExchange& exchange);
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
