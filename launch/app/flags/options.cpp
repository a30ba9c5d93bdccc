#include "launch/app/flags/options.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "launch/app/flags/cli.h"
#include "launch/app/flags/flag_table.h"
#include "launch/app/flags/other_names.h"
#include "models/hugging_face/model_config.h"
#include "models/registry.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"
#include "runtime/outer/record.h"
#include "runtime/train/checkpoint/checkpoint.h"

namespace ddptrain {
namespace {

/// A command line with the names of this program: see with_own_names().
class OwnArguments {
 public:
  OwnArguments(int argc, const char* const* argv, const Flags& flags) : words_(with_own_names(argc, argv, flags)) {
    pointers_.push_back("ddptrain");
    for (const std::string& word : words_) pointers_.push_back(word.c_str());
  }
  int count() const { return static_cast<int>(pointers_.size()); }
  const char* const* words() const { return pointers_.data(); }

 private:
  std::vector<std::string> words_;
  std::vector<const char*> pointers_;
};

struct ChosenModel {
  std::string name;
  bool named;  ///< By a flag, the file, the checkpoint or the folder of --init; else it is the default.
  std::string named_by = "--model";  ///< For the message that there is no such model.
};

/// The model of the newest checkpoint with a manifest. Empty if none can be read: the task says why.
std::optional<std::string> model_of_checkpoint(const std::string& path) {
  try {
    std::filesystem::path newest = path;
    if (!has_manifest(path)) {
      for (const auto& [step, checkpoint] : checkpoints_in(path)) {
        if (has_manifest(checkpoint)) newest = checkpoint;
      }
    }
    return read_manifest(newest).run.model;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

/// The model that reads the weights of --init. Empty if their config.json names none that is known: the task says why.
std::optional<std::string> model_of_weights(const std::string& init) {
  try {
    const std::optional<std::filesystem::path> config = find_model_config(init);
    if (!config) return std::nullopt;
    const std::optional<std::string> type = model_type_in(*config);
    return type ? model_that_reads(*type) : std::nullopt;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

/// The model that flags or the file name, before anything else is known of them; else the model of the checkpoint whose
/// weights --generate or --export takes, or of the weights of --init. What is wrong with the rest, the parse that
/// follows says.
ChosenModel find_model(int argc, const char* const* argv) {
  std::string model = Options{}.model;
  std::string config;
  std::string resume;
  std::string folder;
  std::string init;
  std::string export_to;
  bool generate = false;
  Flags flags = {{"--model", text(model)},       {"--config", text(config)},     {"--resume", text(resume)},
                 {"--init", text(init)},         {"--checkpoint", text(folder)}, {"--export", text(export_to)},
                 {"--generate", given(generate)}};
  const bool& named = flags.front().given;
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  add_flags(app, flags);
  for (CLI::Option* option : app.get_options()) option->expected(0, 1);  // the parse that follows asks for values
  const OwnArguments arguments(argc, argv, flags);
  try {
    app.parse(arguments.count(), arguments.words());
  } catch (const CLI::ParseError&) {
    return {model, named};
  }
  if (named) return {model, true};
  if (const auto in_file = config.empty() ? std::nullopt : text_in_config(config, "model")) {
    return {*in_file, true, fmt::format("{}: model =", config)};
  }
  if (init.empty() && !config.empty()) init = text_in_config(config, "init").value_or("");
  const std::string checkpoint = resume == "auto" ? folder : resume;
  const bool takes_checkpoint = !checkpoint.empty() && (generate || !export_to.empty());
  const auto of_weights = takes_checkpoint ? model_of_checkpoint(checkpoint) : model_of_weights(init);
  return {of_weights.value_or(model), of_weights.has_value()};
}

/// The model that has a flag which the chosen one lacks, or what to do in place of a flag of other programs. Empty:
/// neither.
std::string explanation_of(const std::string& flag, const std::string& chosen) {
  for (const std::string& model : model_names()) {
    const auto workload = make_workload(model);
    Flags flags = workload->flags();
    if (find_flag(flags, own_name(flag)) == nullptr) continue;
    const std::string own = own_name(flag) == flag ? "" : fmt::format(" ({} here)", own_name(flag));
    return fmt::format(": it is a flag{} of model {}, not of {}", own, model, chosen);
  }
  const std::string hint = hint_about(flag);
  return hint.empty() ? "" : ": " + hint;
}

NamedValues program_and_task(const std::string& task) {
  const std::string cuda = built_with_cuda() ? "CUDA " + cuda_version() : "without CUDA";
  return {{"the program", fmt::format("ddptrain {}, {}, {}", DDPTRAIN_VERSION, cuda, mpi_version())},
          {"the task", task}};
}

/// Names of the flags with which training ends with other parameters.
std::vector<std::string> flags_that_decide_parameters(const Flags& flags) {
  std::vector<std::string> all;
  for (const Flag& flag : flags) {
    if (flag.effect == Effect::parameters) all.push_back(flag.name());
  }
  return all;
}

/// Flags that print something, or use a model, in place of training; and --config.
struct Modes {
  bool evaluate = false;
  bool generate = false;
  bool describe = false;
  bool dry_run = false;
  bool print_config = false;
  bool version = false;
  std::string help;  ///< See help_topic().
  std::string config;
};

Flags mode_flags(Modes& modes, Options& options) {
  const std::string topics = fmt::format("[all|{}|names]", fmt::join(model_names(), "|"));
  Flags flags = {
      {"--evaluate", given(modes.evaluate), "Evaluate the weights of --init on the test set", Effect::output},
      {"--generate", given(modes.generate),
       "Continue texts with the model of --init, or of the checkpoint that --resume names (gpt, llama)",
       Effect::output},
      {"--inspect", text(options.inspect, "PATH"),
       "Print the content of a checkpoint, or of each checkpoint in a folder", Effect::output},
      {"--export", text(options.export_to, "DIR"),
       "Write the weights of the checkpoint that --resume names, in the format of --save", Effect::output},
      {"--replay-log", text(options.replay, "FILE"),
       "Compute the outer weights again from a file of --outer-record, and print their hash", Effect::output},
      {"--describe", given(modes.describe), "Print compute, communication and memory of the run as JSON",
       Effect::output},
      {"--dry-run", given(modes.dry_run), "Check all that needs no GPU, and print the memory that a rank needs",
       Effect::output},
      {"--ranks", number(options.ranks, {"0 to 1000000", 0, 1e6}),
       "Ranks that --describe and --dry-run are about (0: those of this job)", Effect::output},
      {"--force", given(options.force), "Overwrite files that no run wrote", Effect::output},
      {"--print-config", given(modes.print_config), "Print a file for --config", Effect::output},
      {"--version", given(modes.version), "Print the versions of ddptrain and its libraries", Effect::output},
      {"-h,--help", text(modes.help, topics),
       "Print the common flags, all flags, the flags of a model, or names of flags in other programs", Effect::output},
      {"--config", text(modes.config, "FILE"), "Read flags from a TOML file (name = value); the command line wins",
       Effect::parameters, "Training"}};
  for (Flag& flag : flags) {
    flag.in_file = false;
    if (flag.group.empty()) flag.group = kModesGroup;
  }
  return flags;
}

Flags generation_flags(GenerateOptions& o) {
  FlagValue max_tokens = or_word("auto", o.auto_max_tokens, number(o.max_tokens, {"1 to 1000000", 1, 1e6}));
  max_tokens.text = "auto";
  Flags flags = {
      {"--prompt", text(o.prompt),
       "Text to continue, of a model whose tokens are bytes. Without it and --prompts, --sample-every continues the "
       "first tokens of the data for validation",
       Effect::output},
      {"--prompts", text(o.prompts, "FILE"),
       "File of prompts: a line of token ids for each. The replicas take them in turn", Effect::output},
      {"--max-tokens", max_tokens,
       "Most tokens that are added to a prompt; auto: 64, or fewer if the model has fewer positions", Effect::output},
      {"--temperature", number(o.temperature, {"0 or more", 0, 1e6}),
       "Divides the logits; 0: always the likeliest token", Effect::output},
      {"--top-k", number(o.top_k, kZeroOrMore), "Choose among this many of the likeliest tokens (0: all)",
       Effect::output},
      {"--top-p", number(o.top_p, {"above 0 and at most 1", kLeastAboveZero, 1}),
       "Choose among the likeliest tokens that together have this probability", Effect::output}};
  for (Flag& flag : flags) flag.group = kGenerationGroup;
  return flags;
}

/// Whether the task is training, or is about it.
bool is_training(Task task) { return task == Task::train || task == Task::describe || task == Task::dry_run; }

/// Whether the flags of the model decide its sizes. Other tasks take those of a checkpoint or a folder.
bool decides_sizes(Task task) { return is_training(task) || task == Task::evaluate; }

/// Whether the task reads the weights of a checkpoint, whose model then has its sizes.
bool takes_checkpoint(Task task) { return task == Task::generate || task == Task::export_weights; }

/// Whether the task writes what this flag names. A file of --config may have flags of training for other tasks.
bool writes(Task task, const std::string& flag) {
  if (flag == "--metrics") return is_training(task) || uses_device(task);
  return is_training(task) || flag == "--export";
}

std::vector<InputPath> inputs_of(Flags& flags) {
  std::vector<InputPath> inputs;
  for (const char* name : {"--data", "--init", "--config", "--resume", "--replay-log", "--prompts"}) {
    const Flag* const flag = find_flag(flags, name);
    if (flag == nullptr || flag->value.text.empty()) continue;
    const std::string& path = flag->value.text;
    if (path == "auto" || path == "synthetic" || path.starts_with("synthetic:")) continue;
    inputs.push_back({name, path});
    if (name == std::string("--init")) inputs.push_back({name, saved_weights(name, path).path});
  }
  return inputs;
}

std::vector<OutputFile> outputs_of(Flags& flags, Task task) {
  const auto path_of = [&](const char* name) {
    const Flag* const flag = find_flag(flags, name);
    return flag == nullptr || !writes(task, name) ? "" : flag->value.text;
  };
  std::vector<std::string> metrics;  // the first lines that tasks write
  for (const char* event : {"start", "evaluated", "generated"}) {
    metrics.push_back(fmt::format("{{\"event\":\"{}\",\"version\":", event));
  }
  std::vector<OutputFile> outputs = {
      {"--metrics", path_of("--metrics"), metrics},
      {"--trace", path_of("--trace"), {"{\"traceEvents\":[{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":0"}},
      {"--outer-record", path_of("--outer-record"), {kOuterRecordStart}}};
  for (const char* name : {"--save", "--export"}) {
    if (path_of(name).empty()) continue;
    const OutputFile weights = saved_weights(name, path_of(name));
    outputs.push_back(weights);
    // Some models write it beside the weights, which tell whether both are of this program.
    OutputFile config = {name, path_of(name) + "/config.json", {}};
    config.is_foreign = !std::filesystem::exists(weights.path);
    outputs.push_back(config);
  }
  return outputs;
}

/// UsageError for flags that have no effect with each other. `defaults` has the flags before the command line was read.
void check_combinations(Flags& flags, Flags& defaults) {
  const Flag* mode = nullptr;  // the one that was given
  for (const char* name :
       {"--replay-log", "--evaluate", "--generate", "--inspect", "--export", "--describe", "--dry-run"}) {
    const Flag* const flag = find_flag(flags, name);
    if (!flag->given) continue;
    if (mode != nullptr) usage_error("--{} with {}: a run does one of them. Leave the other out.", mode->name(), name);
    mode = flag;
  }
  const bool samples = find_flag(flags, "--sample-every")->value.text != "0";
  for (const Flag& flag : flags) {
    if (flag.group != kGenerationGroup || !flag.given || samples || find_flag(flags, "--generate")->given) continue;
    usage_error("--{}: it is for texts: add --sample-every N to train, or --generate", flag.name());
  }
  const Flag& outer = *find_flag(flags, "--outer");
  if (outer.given && outer.value.text.empty()) {
    usage_error("--outer '': the URL is empty. Give redis://HOST/NAME, or leave the flag out.");
  }
  const bool trains = mode == nullptr || mode->name() == "describe" || mode->name() == "dry-run";
  if (outer.given && !trains) {
    usage_error("--{} with --outer: only training shares a log. Leave --outer out.", mode->name());
  }
  const auto is_set = [&](const Flag& flag) {  // other tasks ignore what a file says of groups
    return flag.given || (trains && flag.value.text != find_flag(defaults, "--" + flag.name())->value.text);
  };
  for (const Flag& flag : flags) {
    const bool is_of_groups = flag.name() == "group" || flag.name().starts_with("outer-");
    if (!is_of_groups || outer.given || !is_set(flag)) continue;
    usage_error("--{} {}: it is for groups that share a log: add --outer URL", flag.name(), printable(flag.value.text));
  }
  const Flag& groups = *find_flag(flags, "--outer-groups");
  const Flag& age = *find_flag(flags, "--outer-max-age");
  if (groups.value.text != "0" && is_set(age)) {
    usage_error("--outer-max-age {} with --outer-groups {}: in rounds, no difference is old. Leave it out.",
                age.value.text, groups.value.text);
  }
  const Flag& momentum = *find_flag(flags, "--outer-momentum");
  const std::string& optimizer = find_flag(flags, "--outer-optimizer")->value.text;
  const bool is_sgd = optimizer == "sgd" || (optimizer == "auto" && groups.value.text == "0");
  if (is_sgd && is_set(momentum)) {
    usage_error("--outer-momentum {}: the outer optimizer is sgd, which has none. Add --outer-optimizer nesterov.",
                momentum.value.text);
  }
}

Task task_of(const Modes& modes, const Options& options) {
  if (!options.export_to.empty()) {
    if (options.resume.empty()) usage_error("--export {}: name the checkpoint with --resume PATH", options.export_to);
    return Task::export_weights;
  }
  if (!options.replay.empty()) return Task::replay;
  if (!options.inspect.empty()) return Task::inspect;
  if (modes.evaluate) return Task::evaluate;
  if (modes.generate) return Task::generate;
  if (options.ranks > 0 && !modes.describe && !modes.dry_run) {
    usage_error("--ranks {0}: it is for --describe and --dry-run. To train, start {0} ranks with mpirun -np {0}.",
                options.ranks);
  }
  if (modes.describe || modes.dry_run) return modes.describe ? Task::describe : Task::dry_run;
  return Task::train;
}

std::string name_of(Task task) {
  constexpr std::array kNames = {"training",  "--describe", "--dry-run",    "--evaluate",
                                 "--inspect", "--export",   "--replay-log", "--generate"};
  return kNames.at(static_cast<std::size_t>(task));
}

/// Drops what a file of --config says if the command line names something else in its place. A file may name the
/// weights to train from.
void drop_replaced(Flags& flags, Task task) {
  const auto replaces = [&](const char* name, const char* other) {
    const Flag* const flag = find_flag(flags, name);
    Flag* const dropped = find_flag(flags, other);
    if (flag != nullptr && dropped != nullptr && flag->given && !dropped->given) dropped->set("");
  };
  replaces("--prompt", "--prompts");
  replaces("--prompts", "--prompt");
  if (takes_checkpoint(task)) {
    replaces("--resume", "--init");
    replaces("--init", "--resume");
  }
  Flag* const resume = find_flag(flags, "--resume");
  if (task == Task::evaluate && !resume->given) resume->set("");
}

/// UsageError for a flag of the command line that the task ignores, although it names a file to write or a way to
/// train. A file of --config may have such flags. `defaults` has the flags before the command line was read.
void check_unused(Flags& flags, Flags& defaults, Task task, const Options& options) {
  if (is_training(task)) return;
  const auto refuse = [&](const char* name, const char* reason) {
    const Flag* const flag = find_flag(flags, name);
    if (flag == nullptr || !flag->given || flag->value.text == find_flag(defaults, name)->value.text) return;
    usage_error("{} with {}: {}. Leave {} out.", name_of(task), name, reason, name);
  };
  for (const char* name : {"--save", "--trace"}) refuse(name, "only training writes it");
  refuse("--sample-every", "only training writes samples");
  if (options.resume != "auto") refuse("--checkpoint", "only training writes checkpoints");
  if (task != Task::evaluate && task != Task::generate) refuse("--metrics", "there are no metrics of it");
  if (task == Task::evaluate) return;
  for (const char* name : {"--zero", "--virtual-ranks"}) refuse(name, "it is a way to train");
  if (!takes_checkpoint(task)) refuse("--seq", "the model decides it");
}

/// --seq of the command line, if the task compares it with the model's.
std::optional<std::int64_t> given_sequence(Flags& flags, Task task) {
  const Flag* const flag = find_flag(flags, "--seq");
  if (flag == nullptr || !flag->given || !takes_checkpoint(task)) return std::nullopt;
  return std::stoll(flag->value.text);
}

/// Groups draw their samples in orders of their own.
std::uint64_t order_seed_of(std::uint64_t seed, const std::string& group) {
  const std::string text = fmt::format("{} {}", seed, group);
  return xxh3_128_value(text.data(), text.size())[0];
}

/// Values of groups that follow from several flags. Momentum diverges with differences that are applied one by one.
void settle_groups(Options& options) {
  OuterOptions& outer = options.outer;
  OuterRule& rule = outer.rule;
  rule.optimizer = options.outer_optimizer.value_or(rule.groups > 0 ? OuterOptimizer::nesterov : OuterOptimizer::sgd);
  if (options.auto_outer_lr) rule.learning_rate = rule.optimizer == OuterOptimizer::sgd ? 1.0f : 0.7f;
  if (!outer.address.empty()) options.trainer.order_seed = order_seed_of(options.trainer.seed, outer.group);
}

void check_evaluation(const Options& options, const Workload& workload) {
  if (options.stages > 1) {
    usage_error("--evaluate with --pp {}: a stage is no whole model. Use --pp 1.", options.stages);
  }
  if (options.tensor > 1) usage_error("--evaluate with --tp {}: a part is no whole model. Use --tp 1.", options.tensor);
  if (!options.resume.empty()) {
    usage_error(
        "--evaluate with --resume: write the checkpoint's weights with --resume PATH --export DIR, then use --init "
        "DIR");
  }
  if (!workload.starts_from_weights()) usage_error("--evaluate: name the weights with --init PATH");
}

/// Without a name, the model of a checkpoint that cannot be read is unknown: the task says why.
void check_generation(const Options& options, const Workload& workload, bool names_model) {
  if (!workload.continues_texts() && (names_model || options.resume.empty())) {
    usage_error("--generate: model {} has no texts. Use --model gpt or llama.", options.model);
  }
  if (workload.starts_from_weights() != options.resume.empty()) {
    usage_error("--generate: name the weights with --init PATH, or a checkpoint with --resume PATH");
  }
  if (options.generate.prompt.empty() == options.generate.prompts.empty()) {
    usage_error("--generate: give either --prompt TEXT or --prompts FILE");
  }
  if (options.precision == NumberFormat::fp8) {
    usage_error("--generate with --precision fp8: text is generated in bf16 at least. Use bf16.");
  }
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv, const std::map<std::string, std::string>& defaults) {
  const ChosenModel model = find_model(argc, argv);
  CommandLine result;
  result.workload = make_workload(model.name, model.named_by);
  Options& options = result.options;
  Modes modes;
  Flags flags = flags_of(options, model.name, *result.workload);
  for (Flag& flag : generation_flags(options.generate)) flags.push_back(std::move(flag));
  for (Flag& flag : mode_flags(modes, options)) flags.push_back(std::move(flag));
  take_other_values(flags);
  Flags before = flags;
  for (const auto& [flag, value] : defaults) find_flag(flags, flag)->set(value);
  CLI::App app{"", "ddptrain"};
  app.set_help_flag();
  add_flags(app, flags);
  if (const auto topic = help_topic(argc, argv)) {
    result.print = help_text(app, topic->empty() && model.named ? model.name : *topic);
    result.same_on_all_ranks = program_and_task("--help");
    return result;
  }
  const OwnArguments arguments(argc, argv, flags);
  const auto explain = [&](const std::string& flag) { return explanation_of(flag, model.name); };
  parse_flags(app, arguments.count(), arguments.words(), "ddptrain --help all lists", explain);
  if (modes.version) {
    result.print = version_text();
    result.same_on_all_ranks = program_and_task("--version");
    return result;
  }
  result.notes = notes_about(argc, argv, flags);
  if (!modes.config.empty()) {
    for (std::string& note : read_config(flags, modes.config, explain)) result.notes.push_back(std::move(note));
  }
  check_combinations(flags, before);
  result.workload->note_given(flags);
  result.task = task_of(modes, options);
  find_flag(flags, "--model")->set(model.name);
  result.names_model = model.named;
  drop_replaced(flags, result.task);
  check_unused(flags, before, result.task, options);
  result.given_sequence = given_sequence(flags, result.task);
  if (decides_sizes(result.task)) result.workload->check_flags();
  (is_training(result.task) ? check_training_flags : check_flags)(options, *result.workload);
  settle_groups(options);
  if (result.task == Task::evaluate) check_evaluation(options, *result.workload);
  if (result.task == Task::generate) check_generation(options, *result.workload, model.named);
  result.settings = settings_of(flags);
  result.inputs = inputs_of(flags);
  result.outputs = outputs_of(flags, result.task);
  result.decides_parameters = flags_that_decide_parameters(flags);
  if (modes.print_config) result.print = config_text(result.settings);
  result.same_on_all_ranks = program_and_task(modes.print_config ? "--print-config" : name_of(result.task));
  for (const Setting& setting : result.settings) {
    result.same_on_all_ranks.emplace_back("--" + setting.name, setting.value);
  }
  return result;
}

std::string version_text() {
  const std::string cuda =
      built_with_cuda() ? fmt::format("CUDA {}\ncuDNN {}\nNCCL {}\n", cuda_version(), cudnn_version(), nccl_version())
                        : "CUDA, cuDNN, NCCL: not in this build\n";
  return fmt::format("ddptrain {}\n{}MPI {}\n", DDPTRAIN_VERSION, cuda, mpi_version());
}

const char* name_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp32:
      return "fp32";
    case NumberFormat::tf32:
      return "tf32";
    case NumberFormat::bf16:
      return "bf16";
    case NumberFormat::fp8:
      return "fp8";
  }
  return "";
}

}  // namespace ddptrain
