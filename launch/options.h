#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/device/device.h"
#include "runtime/train/trainer.h"
#include "runtime/train/training_run.h"

namespace ddptrain {

enum class LrScaling : std::uint8_t { none, linear, sqrt };

inline GptShape default_gpt() {
  GptShape shape;
  shape.vocabulary = 0;
  return shape;
}

/// The flags of ddptrain.
struct Options {
  std::string model = "cnn";
  std::string device = "auto";     ///< auto, cpu or cuda
  std::string precision = "auto";  ///< auto, fp32, tf32 or bf16
  int threads = 1;
  MemoryFormat memory_format = MemoryFormat::nhwc;
  bool fused = true;
  bool tune = false;

  GptShape gpt = default_gpt();  ///< vocabulary 0: that of the data.
  Recompute recompute = Recompute::none;

  std::string data;  ///< See find_data(); empty for the usual places of Fashion-MNIST.
  double val_fraction = 0.1;
  std::string init;  ///< GPT-2 folder or file of transformers to start from.
  std::string save;  ///< Folder to leave such a model in.
  std::int64_t epochs = 4;
  std::int64_t steps = 0;
  std::int64_t batch = 512;
  std::int64_t grad_accum = 1;
  std::uint64_t seed = 1;
  std::string dropout = "auto";  ///< auto, on, off or a rate

  OptimizerSettings optimizer;  ///< Without the schedule's steps, which scheduled() fills in.
  LrScaling lr_scaling = LrScaling::none;
  std::int64_t lr_base_batch = 512;
  float clip_norm = 0.0f;

  double bucket_mb = 25.0;
  double last_bucket_kb = 256.0;
  OverlapMode overlap = OverlapMode::on;
  CommLibrary comm = CommLibrary::automatic;
  bool symmetric = true;
  bool fused_sum = true;
  int comm_ctas = 4;
  bool zero = false;                ///< ZeRO-1.
  std::string comm_dtype = "auto";  ///< auto, bf16 or fp32
  bool graph = true;

  bool baseline = true;
  std::string metrics;
  double peak_tflops = 0.0;  ///< 0: of the data sheet.
  std::string trace;
  std::string log_level = "info";
  std::int64_t log_every = 0;
  std::int64_t eval_every = 0;
  std::int64_t eval_samples = 0;
  std::int64_t sample_every = 0;
  std::string prompt = "The";
  std::int64_t sample_tokens = 200;
  float temperature = 0.8f;
  int fail_rank = -1;
  std::int64_t fail_step = -1;
};

/// What the command line asks for: to train, or only to print something (help, version, configuration) and end.
struct CommandLine {
  Options options;
  std::optional<std::string> print;
  std::string configuration;  ///< Program, task and value of every option, as lines for require_same_configuration().
};

/// Reads flags and the file of --config (flags win). UsageError for everything that can be told to be wrong without
/// looking at devices and data.
CommandLine parse_command_line(int argc, const char* const* argv);

/// Program, CUDA, NCCL, cuDNN and MPI; works without a GPU.
std::string version_text();

/// What the flags mean for a device and a number of ranks.
Precision chosen_precision(const Options& options, DeviceKind kind);
DeviceOptions device_options(const Options& options, DeviceKind kind);
/// UsageError where flags do not go with the precision.
void check_precision(const Options& options, Precision precision);
float scaled_learning_rate(const Options& options, int world_size);
TrainerOptions trainer_options(const Options& options, int world_size, std::int64_t total_steps);
RunOptions run_options(const Options& options);

}  // namespace ddptrain
