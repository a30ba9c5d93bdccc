#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/app/flags/config_file.h"
#include "launch/app/flags/named_values.h"
#include "models/workload.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/files/outputs.h"
#include "runtime/device/device.h"
#include "runtime/diagnostics/watchdog.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/groups/outer_loop.h"
#include "runtime/train/run/run_options.h"
#include "runtime/train/step/trainer_options.h"

/// The flags of ddptrain, as they were typed. Each sets an option of its component. launch/app/plan/ makes a RunPlan of
/// them, which has the values that depend on the machine or on several flags.

namespace ddptrain {

enum class LrScaling : std::uint8_t { none, linear, sqrt };

/// What --precision names: the numbers of weights and compute. fp8 is bf16 with FP8 linear layers.
enum class NumberFormat : std::uint8_t { fp32, tf32, bf16, fp8 };

const char* name_of(NumberFormat format);  ///< As --precision names it.

/// For tests: a rank hangs when a phase begins (Watch::Phase), or after some steps.
struct HangAt {
  std::optional<int> rank = {};  ///< Empty: none.
  std::string phase;             ///< Empty: after `steps` steps.
  std::uint64_t steps = UINT64_MAX;
};

/// The flags of --generate and --sample-every. See GenerationRequest.
struct GenerateOptions {
  std::string prompt;   ///< A text whose bytes are tokens.
  std::string prompts;  ///< A file with the ids of a prompt in each line.
  std::int64_t max_tokens = 64;
  bool auto_max_tokens = true;  ///< max_tokens, or fewer if the model has fewer positions.
  double temperature = 1.0;
  std::int64_t top_k = 0;
  double top_p = 1.0;
};

/// All flags except the model's own, which are in its workload.
struct Options {
  std::string model = "cnn";
  std::string device = "auto";                 ///< auto, cpu or cuda
  bool share_gpu = false;                      ///< Allow more ranks than GPUs.
  std::optional<NumberFormat> precision = {};  ///< Empty: as the device has it.
  DeviceOptions compute;                       ///< Without precision, FP8 and comm_ctas.
  std::string tune_cache;                      ///< See TunedCache.

  TrainerOptions trainer;   ///< Without what depends on other flags or on the number of ranks.
  int stages = 1;           ///< Pipeline stages: see MeshShape.
  int tensor = 1;           ///< Parts of each layer: see MeshShape.
  bool auto_batch = false;  ///< The largest batch that fits in place of trainer.batch.
  LrScaling lr_scaling = LrScaling::none;
  std::int64_t lr_base_batch = 512;
  double bucket_mb = 25.0;
  double last_bucket_kb = 256.0;
  CommLibrary comm = CommLibrary::automatic;
  bool hierarchical = true;  ///< MPI: reduce within each host first.
  bool symmetric = true;
  int comm_ctas = 4;

  CheckpointOptions checkpoint;
  int ranks = 0;              ///< For Task::describe and dry_run. 0: the ranks of this job.
  std::string resume;         ///< auto, a checkpoint, or a folder of checkpoints. Empty: no resume.
  bool allow_change = false;  ///< A resume may change flags that decide parameters.
  std::string inspect;        ///< For Task::inspect.
  std::string export_to;      ///< For Task::export_weights.
  std::string replay;         ///< For Task::replay.
  GenerateOptions generate;   ///< For Task::generate and RunOptions::sample_every.

  OuterOptions outer;
  std::optional<OuterOptimizer> outer_optimizer;  ///< Empty: nesterov in rounds, else sgd.
  bool auto_outer_lr = true;
  RunOptions run;
  WatchdogOptions watchdog;
  HangAt hang;
  std::string metrics;
  double peak_tflops = 0.0;  ///< 0: the data sheet's.
  std::string log_level = "info";
  bool force = false;  ///< Overwrite files that no run wrote.

  Options() {
    run.epochs = 4;
    outer.rule.most_age = 100;
    checkpoint.every_seconds = 600.0;
  }
};

/// See launch/app/tasks/tasks.h.
enum class Task : std::uint8_t {
  train,
  describe,  ///< Print the run's description.
  dry_run,   ///< Print the run's memory.
  evaluate,  ///< Evaluate a saved model.
  inspect,   ///< Print the content of checkpoints.
  export_weights,
  replay,    ///< Fold a recorded log again.
  generate,  ///< Continue texts.
};

inline bool uses_device(Task task) { return task == Task::train || task == Task::evaluate || task == Task::generate; }

/// The result of parsing the command line.
struct CommandLine {
  Options options;
  std::unique_ptr<Workload> workload;
  Task task = Task::train;
  bool names_model = false;                     ///< By --model, in the file, too, or by what is read.
  std::optional<std::int64_t> given_sequence;   ///< --seq, for tasks that take the model's: see check_sequence().
  std::optional<std::string> print;             ///< Text to print instead of any task: help, version, configuration.
  std::vector<Setting> settings;                ///< The values of all flags that a file can have.
  std::vector<std::string> decides_parameters;  ///< Flags that change the parameters after training.
  NamedValues same_on_all_ranks;                ///< Program, task and settings.
  std::vector<InputPath> inputs;                ///< Files and folders that the flags name: see check_outputs().
  std::vector<OutputFile> outputs;
  std::vector<std::string> notes;  ///< What flags with the names of other programs mean here.
};

/// Reads flags and the file of --config; flags win. `defaults` has values, by name, for flags that neither sets
/// (--data). UsageError for every mistake that shows without devices and data.
CommandLine parse_command_line(int argc, const char* const* argv,
                               const std::map<std::string, std::string>& defaults = {});

/// Program, CUDA, NCCL, cuDNN and MPI; works without a GPU.
std::string version_text();

}  // namespace ddptrain
