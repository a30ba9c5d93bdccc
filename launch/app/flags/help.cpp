#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/app/flags/cli.h"
#include "launch/app/flags/flag_table.h"
#include "launch/app/flags/other_names.h"
#include "models/registry.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

constexpr const char* kStart =
    "Usage: ddptrain [FLAGS]\n"
    "       mpirun -np RANKS ddptrain [FLAGS]\n\n";

constexpr const char* kAbout =
    "Trains a model on many ranks. By default each rank is a process that has a copy of the model, computes "
    "the gradients of its part of every batch, and sums them with the other ranks.";

constexpr const char* kExamples =
    "Examples:\n"
    "  Train the CNN on the CPU with 2 ranks, on synthetic images:\n"
    "    mpirun -np 2 --bind-to none ddptrain --device cpu --data synthetic --epochs 1\n"
    "  Train the CNN on 8 GPUs, with checkpoints (launch/fetch-data downloads Fashion-MNIST):\n"
    "    mpirun -np 8 --bind-to none ddptrain --epochs 20 --checkpoint run1\n"
    "  Resume that run from its newest checkpoint:\n"
    "    mpirun -np 8 --bind-to none ddptrain --epochs 20 --checkpoint run1 --resume auto\n"
    "  Train a small GPT on a text file:\n"
    "    mpirun -np 2 --bind-to none ddptrain --config configs/gpt-char.toml --data text.txt\n\n";

std::string short_help(const CLI::App& app) {
  const std::vector<std::pair<const char*, std::vector<const char*>>> groups = {
      {"Training",
       {"--model", "--data", "--init", "--save", "--config", "--epochs", "--steps", "--batch", "--grad-accum",
        "--precision", "--seed"}},
      {"Optimizer", {"--optimizer", "--lr", "--schedule", "--warmup"}},
      {"Device and communication", {"--device", "--threads", "--zero", "--pp", "--tp"}},
      {"Checkpoints and output",
       {"--checkpoint", "--checkpoint-every", "--resume", "--metrics", "--log-every", "--eval-every"}},
      {"Modes", {"--generate", "--dry-run", "--help"}}};
  std::string text = kStart + wrapped(kAbout, 0) + "\n";
  for (const auto& [title, names] : groups) {
    std::vector<const CLI::Option*> options;
    for (const char* name : names) options.push_back(app.get_option(name));
    text += help_group(title, options);
  }
  return text + kExamples +
         fmt::format("--help all lists every flag; --help gpt lists the flags of a model ({}).\n",
                     fmt::join(model_names(), ", "));
}

std::string model_help(const std::string& model) {
  const auto workload = make_workload(model);
  Flags flags = workload->flags();
  CLI::App app;
  app.set_help_flag();
  add_flags(app, flags);
  return help_group("Model " + model, std::as_const(app).get_options());
}

/// Flags of the program that only models with texts heed; empty for other models.
std::string text_help(const CLI::App& app, const std::string& model) {
  if (!make_workload(model)->continues_texts()) return "";
  std::vector<const CLI::Option*> options = {app.get_option("--generate"), app.get_option("--sample-every")};
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group() == kGenerationGroup) options.push_back(option);
  }
  return help_group(kGenerationGroup, options);
}

/// The flags of the program in the groups that the flags name. Expert and Modes come last, after the models.
std::string full_help(const CLI::App& app) {
  const auto group = [&app](const std::string& title) {
    return help_group(title, app.get_options([&](const CLI::Option* option) { return option->get_group() == title; }));
  };
  std::string text = kStart;
  for (const std::string& title : app.get_groups()) {
    if (title != kExpertGroup && title != kModesGroup && title.rfind("Model ", 0) != 0) text += group(title);
  }
  for (const std::string& model : model_names()) text += model_help(model);
  return text + group(kExpertGroup) + group(kModesGroup);
}

}  // namespace

std::optional<std::string> help_topic(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word.rfind("--help=", 0) == 0) return std::string(word.substr(7));
    if (word != "-h" && word != "--help") continue;
    const bool topic = i + 1 < argc && argv[i + 1][0] != '-';
    return topic ? argv[i + 1] : "";
  }
  return std::nullopt;
}

std::string help_text(const CLI::App& app, const std::string& topic) {
  if (topic.empty()) return short_help(app);
  if (topic == "all") return full_help(app);
  if (topic == "names") return other_names_text();
  const auto models = model_names();
  if (std::find(models.begin(), models.end(), topic) == models.end()) {
    const bool is_number = !topic.empty() && topic.find_first_not_of("0123456789") == std::string::npos;
    if (is_number) usage_error("-h {}: the flag prints the help; llm.c's -h, HellaSwag, has no counterpart", topic);
    usage_error("--help {}: unknown topic. Topics: all, {}, names", printable(topic), fmt::join(models, ", "));
  }
  return model_help(topic) + text_help(app, topic) + "ddptrain --help lists the common flags, --help all every flag.\n";
}

}  // namespace ddptrain
