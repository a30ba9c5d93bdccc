#include "launch/options.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <sstream>
#include <vector>

#include "launch/config_file.h"
#include "launch/flag_groups.h"
#include "launch/help.h"
#include "launch/parse_flags.h"
#include "models/registry.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/flags.h"

namespace ddptrain {
namespace {

/// --config is read after the command line, which wins.
CLI::Option& add_config(CLI::App& app, std::string& path) {
  return *app.add_option("--config", path, "Read flags from a TOML file (name = value); the command line wins")
              ->type_name("FILE")
              ->configurable(false);
}

/// Of --generate where none is named.
std::string model_that_writes(const std::string& otherwise) {
  for (const std::string& model : model_names()) {
    if (make_workload(model)->writes_text()) return model;
  }
  return otherwise;
}

struct ChosenModel {
  std::string name;
  bool named;  ///< By a flag or the file; else it is the default.
};

/// The model that flags or the file name, before anything else is known of them. What is wrong with the rest, the parse
/// that follows says.
ChosenModel find_model(int argc, const char* const* argv) {
  std::string model = Options{}.model;
  std::string config;
  CLI::App app;
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_help_flag();
  app.allow_extras();
  CLI::Option* option = app.add_option("--model", model);
  bool generate = false;
  app.add_flag("--generate", generate);
  add_config(app, config);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError&) {
    return {model, option->count() > 0};
  }
  if (option->count() > 0) return {model, true};
  if (generate) model = model_that_writes(model);
  const auto in_file = config.empty() ? std::nullopt : text_in_config(config, "model");
  return {in_file.value_or(model), generate || in_file.has_value()};
}

/// The model that has a flag which the chosen one lacks; empty: none has.
std::string owner_of(const std::string& flag, const std::string& chosen) {
  std::string text;
  visit_models([&](const std::string& model, const CLI::App& flags) {
    if (!text.empty() || flag.rfind("--", 0) != 0 || flags.get_option_no_throw(flag) == nullptr) return;
    text = fmt::format("a flag of model {}, not of {}", model, chosen);
  });
  return text;
}

/// Lines for CommandLine::configuration.
std::string program_and_task(const char* task) {
  const std::string cuda = built_with_cuda() ? "CUDA " + cuda_version() : "without CUDA";
  return fmt::format("the program = ddptrain {}, {}, {}\nthe task = {}\n", DDPTRAIN_VERSION, cuda, mpi_version(), task);
}

std::string options_text(const CLI::App& app) {
  std::string text;
  for (const char* name : {"--fail-at", "--hang-at"}) {
    const CLI::Option* option = app.get_option(name);
    text += fmt::format("{} = {}\n", name, option->count() > 0 ? option->as<std::string>() : "");
  }
  std::istringstream options(config_text(app));
  for (std::string line; std::getline(options, line);) text += fmt::format("--{}\n", line);
  return text;
}

/// Names of the flags with which training ends with other parameters.
std::vector<std::string> flags_that_decide_parameters(const CLI::App& app, const Workload& workload) {
  const std::set<std::string> others = flags_without_effect(workload);
  std::vector<std::string> names = {"config"};
  for (const CLI::Option* option : app.get_options()) {
    if (others.count(option->get_single_name()) > 0) continue;
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  return names;
}

/// Flags that print something, or use a model, in place of training.
struct Modes {
  bool version = false;
  bool describe = false;
  bool dry_run = false;
  bool evaluate = false;
  bool generate = false;
  std::string help;  ///< See help_topic().
};

void add_modes(CLI::App& app, Modes& modes, Options& options) {
  app.option_defaults()->group(kModesGroup)->configurable(false);
  app.set_help_flag();
  app.add_flag("--evaluate", modes.evaluate, "Evaluate the weights of --init on the test set");
  app.add_flag("--generate", modes.generate, "Write text after --prompt with the model of --init; needs no data");
  app.add_option("--inspect", options.inspect, "Print the content of a checkpoint, or of each checkpoint in a folder")
      ->type_name("PATH");
  app.add_option("--export", options.export_to,
                 "Write the weights of the checkpoint that --resume names, in the format of --save")
      ->type_name("DIR");
  app.add_flag("--describe", modes.describe, "Print compute, communication and memory of the run as JSON");
  app.add_flag("--dry-run", modes.dry_run, "Check all that needs no GPU, and print the memory that a rank needs");
  app.add_flag("--print-config")->description("Print a file for --config");
  app.add_flag("--version", modes.version, "Print the versions of ddptrain and its libraries");
  app.add_option("-h,--help", modes.help, "Print the common flags, all flags, or the flags of a model")
      ->type_name(fmt::format("[all|{}]", fmt::join(model_names(), "|")));
  app.option_defaults()->configurable(true);
}

/// Reads flags and the file into `app`; fills result.print and result.configuration where that ends it.
void parse(CLI::App& app, int argc, const char* const* argv, const ChosenModel& model, CommandLine& result) {
  Options& options = result.options;
  Modes modes;
  std::string config;
  add_modes(app, modes, options);
  add_config(app, config).group("Training");
  if (const auto topic = help_topic(argc, argv)) {
    result.print = help_text(app, topic->empty() && model.named ? model.name : *topic);
    result.configuration = program_and_task("--help");
    return;
  }
  parse_flags(app, argc, argv, "ddptrain --help all lists",
              [&](const std::string& flag) { return owner_of(flag, model.name); });
  if (modes.version) {
    result.print = version_text();
    result.configuration = program_and_task("--version");
    return;
  }
  if (!config.empty()) read_config(app, config);
  if (modes.describe || modes.dry_run) result.task = modes.describe ? Task::describe : Task::dry_run;
  if (modes.evaluate || modes.generate) result.task = modes.evaluate ? Task::evaluate : Task::generate;
  if (!options.inspect.empty()) result.task = Task::inspect;
  if (options.export_to.empty()) return;
  if (options.resume.empty()) usage_error("--export {}: name the checkpoint with --resume PATH", options.export_to);
  result.task = Task::export_weights;
}

const char* name_of(Task task) {
  switch (task) {
    case Task::train:
      return "training";
    case Task::describe:
      return "--describe";
    case Task::dry_run:
      return "--dry-run";
    case Task::evaluate:
      return "--evaluate";
    case Task::generate:
      return "--generate";
    case Task::inspect:
      return "--inspect";
    case Task::export_weights:
      return "--export";
  }
  fail("unknown task");
}

void check_use(const Options& options, const Workload& workload, const std::string& task) {
  if (!workload.starts_from_weights()) usage_error("{}: name the weights with --init PATH", task);
  if (task == "--generate" && !workload.writes_text()) {
    usage_error("--generate: model {} writes no text. Use --evaluate, or --model gpt.", options.model);
  }
  if (!options.resume.empty()) {
    usage_error("{} with --resume: write the checkpoint's weights with --resume PATH --export DIR, then use --init DIR",
                task);
  }
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv, const std::map<std::string, std::string>& defaults) {
  const ChosenModel model = find_model(argc, argv);
  CommandLine result;
  result.workload = make_workload(model.name);
  Options& options = result.options;
  CLI::App app{"", "ddptrain"};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_flags(app, model.name, *result.workload, options);
  for (const auto& [flag, value] : defaults) app.get_option(flag)->default_val(value);
  parse(app, argc, argv, model, result);
  if (result.print) return result;
  options.model = model.name;
  check_flags(options, *result.workload);
  if (uses_a_model(result.task)) check_use(options, *result.workload, name_of(result.task));
  result.decides_parameters = flags_that_decide_parameters(app, *result.workload);
  const char* task = name_of(result.task);
  if (app.count("--print-config") > 0) {
    task = "--print-config";
    result.print = config_text(app);
  }
  result.configuration = program_and_task(task) + options_text(app);
  return result;
}

std::string version_text() {
  const std::string cuda =
      built_with_cuda() ? fmt::format("CUDA {}\ncuDNN {}\nNCCL {}\n", cuda_version(), cudnn_version(), nccl_version())
                        : "CUDA, cuDNN, NCCL: not in this build\n";
  return fmt::format("ddptrain {}\n{}MPI {}\n", DDPTRAIN_VERSION, cuda, mpi_version());
}

Precision chosen_precision(const Options& options, DeviceKind device) {
  if (options.precision == "fp32") return Precision::fp32;
  if (options.precision == "tf32") return Precision::tf32;
  if (options.precision == "bf16" || options.precision == "fp8") return Precision::bf16;
  return default_precision(device);
}

bool sums_with_mpi(const Options& options, DeviceKind device) {
  return device == DeviceKind::cpu || options.comm == CommLibrary::mpi;
}

bool sends_bf16_between_hosts(const Options& options, DeviceKind device) {
  const bool wider = chosen_precision(options, device) != Precision::bf16;
  return sums_with_mpi(options, device) && options.trainer.gradient_type == DType::bf16 && wider;
}

void check_precision(const Options& options, const Workload& workload, DeviceKind device) {
  const Precision precision = chosen_precision(options, device);
  const bool bf16 = precision == Precision::bf16;
  const std::optional<DType> gradients = options.trainer.gradient_type;
  if (gradients == DType::bf16 && !bf16 && !sends_bf16_between_hosts(options, device)) {
    usage_error(
        "--comm-dtype bf16: gradients are {}, and NCCL sends them as they are. Use --comm-dtype auto, --precision bf16 "
        "or --comm mpi.",
        name_of(precision));
  }
  if (sends_bf16_between_hosts(options, device) && (options.trainer.zero || options.trainer.virtual_ranks > 0)) {
    usage_error("--comm-dtype bf16 with {}: {} gradients are sent as they are. Leave one of them out.",
                options.trainer.zero ? "--zero 1" : "--virtual-ranks", name_of(precision));
  }
  if (gradients == DType::f32 && bf16 && !workload.supports_f32_gradients()) {
    usage_error("--comm-dtype fp32: model {} computes bf16 gradients. Use --comm-dtype auto, or --precision fp32.",
                options.model);
  }
  if (options.trainer.optimizer.stochastic_rounding && !bf16) {
    usage_error(
        "--stochastic-rounding on: weights are {}, and only bf16 ones are rounded. Use --stochastic-rounding off, or "
        "--precision bf16.",
        name_of(precision));
  }
}

DeviceOptions device_options(const Options& options, DeviceKind device) {
  DeviceOptions result = options.compute;
  result.precision = chosen_precision(options, device);
  result.fp8 = options.precision == "fp8";
  result.communication_multiprocessors = options.comm_ctas;
  return result;
}

float scaled_learning_rate(const Options& options, int world_size) {
  const TrainerOptions& trainer = options.trainer;
  const auto ranks = static_cast<double>(trainer.virtual_ranks > 0 ? trainer.virtual_ranks : world_size);
  const double samples = static_cast<double>(trainer.batch) * static_cast<double>(trainer.grad_accum) * ranks;
  const double ratio = samples / static_cast<double>(options.lr_base_batch);
  const double peak = trainer.optimizer.schedule.peak;
  switch (options.lr_scaling) {
    case LrScaling::none:
      return static_cast<float>(peak);
    case LrScaling::linear:
      return static_cast<float>(peak * ratio);
    case LrScaling::sqrt:
      return static_cast<float>(peak * std::sqrt(ratio));
  }
  fail("unknown learning-rate scaling");
}

TrainerOptions trainer_options(const Options& options, int world_size, std::int64_t total_steps) {
  TrainerOptions result = options.trainer;
  result.optimizer.schedule.peak = scaled_learning_rate(options, world_size);
  result.optimizer.schedule.total_steps = static_cast<std::uint64_t>(total_steps);
  result.optimizer.rounding_seed = result.seed;
  result.bucket_bytes = static_cast<std::size_t>(options.bucket_mb * 1048576.0);
  result.last_bucket_bytes = static_cast<std::size_t>(options.last_bucket_kb * 1024.0);
  return result;
}

}  // namespace ddptrain
