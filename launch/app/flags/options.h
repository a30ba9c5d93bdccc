#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launch/app/flags/config_file.h"
#include "launch/app/job/same_on_all_ranks.h"
#include "models/workload.h"
#include "runtime/device/device.h"
#include "runtime/diagnostics/watchdog.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/run/training_run.h"
#include "runtime/train/step/trainer.h"

/// The flags of ddptrain: each is written into the options of the component that it is for. What depends on the machine
/// or on several of them is worked out by the functions below.

namespace ddptrain {

enum class LrScaling : std::uint8_t { none, linear, sqrt };

/// For tests: a rank that hangs when a phase begins (Watch::Phase), or after so many steps.
struct HangAt {
  int rank = -1;
  std::string phase;  ///< Empty: by steps.
  std::int64_t steps = 0;
};

/// All flags but those of the model, which its workload keeps.
struct Options {
  std::string model = "cnn";
  std::string device = "auto";     ///< auto, cpu or cuda
  bool share_gpu = false;          ///< More ranks than GPUs are allowed.
  std::string precision = "auto";  ///< auto, fp32, tf32, bf16 or fp8
  DeviceOptions compute;           ///< See device_options().
  std::string tune_cache;          ///< See TunedCache.

  TrainerOptions trainer;   ///< See trainer_options().
  int stages = 1;           ///< Of a pipeline: see MeshShape.
  int tensor = 1;           ///< Ranks that split each layer: see MeshShape.
  bool auto_batch = false;  ///< trainer.batch is still to be found, see launch/app/tasks/memory_advice.h.
  LrScaling lr_scaling = LrScaling::none;
  std::int64_t lr_base_batch = 512;
  double bucket_mb = 25.0;
  double last_bucket_kb = 256.0;
  CommLibrary comm = CommLibrary::automatic;
  bool hierarchical = true;  ///< MPI: sums within a host come first.
  bool symmetric = true;
  int comm_ctas = 4;

  CheckpointOptions checkpoint;
  int ranks = 0;              ///< For Task::describe and dry_run; 0: those of this job.
  std::string resume;         ///< auto, or the path of a checkpoint or of a folder of them; empty: from the start.
  bool allow_change = false;  ///< Of flags that decide parameters, on resume.
  std::string inspect;        ///< For Task::inspect.
  std::string export_to;      ///< For Task::export_weights.

  RunOptions run;
  WatchdogOptions watchdog;
  HangAt hang;
  std::string metrics;
  std::string tensorboard;
  double peak_tflops = 0.0;    ///< 0: of the data sheet.
  bool measures_peak = false;  ///< In place of it.
  std::string log_level = "info";

  Options() {
    run.epochs = 4;
    checkpoint.every_seconds = 600.0;
  }
};

enum class Task : std::uint8_t {
  train,
  describe,  ///< Print the run's description, see launch/app/tasks/describe.h.
  dry_run,   ///< Print its memory.
  evaluate,  ///< A model that is not trained, see launch/app/tasks/evaluate.h.
  inspect,   ///< Print what a checkpoint holds, see launch/app/tasks/checkpoint_tasks.h.
  export_weights,
};

inline bool uses_device(Task task) { return task == Task::train || task == Task::evaluate; }

/// What the command line asks for: to train, or only to print something and end.
struct CommandLine {
  Options options;
  std::unique_ptr<Workload> workload;
  Task task = Task::train;
  std::optional<std::string> print;             ///< Help, version or configuration: nothing else is done.
  std::vector<Setting> settings;                ///< The values of all flags that a file can give.
  std::vector<std::string> decides_parameters;  ///< Flags with which training ends with other parameters.
  NamedValues same_on_all_ranks;                ///< Program, task and settings.
};

/// Reads flags and the file of --config (flags win). `defaults`: values of flags that neither sets, by name (--data).
/// UsageError for everything that can be told to be wrong without looking at devices and data.
CommandLine parse_command_line(int argc, const char* const* argv,
                               const std::map<std::string, std::string>& defaults = {});

/// Program, CUDA, NCCL, cuDNN and MPI; works without a GPU.
std::string version_text();

/// What the flags mean for a device and a number of ranks.
Precision chosen_precision(const Options& options, DeviceKind device);
DeviceOptions device_options(const Options& options, DeviceKind device);
/// Whether MPI sums gradients, and not NCCL.
bool sums_with_mpi(const Options& options, DeviceKind device);
/// Whether MPI rounds gradients, which are wider, on their way: CommunicatorOptions::bf16_between_hosts.
bool sends_bf16_between_hosts(const Options& options, DeviceKind device);
/// UsageError where flags do not go with the device's precision.
void check_precision(const Options& options, const Workload& workload, DeviceKind device);
float scaled_learning_rate(const Options& options, int world_size);
TrainerOptions trainer_options(const Options& options, int world_size, std::int64_t total_steps);

}  // namespace ddptrain
