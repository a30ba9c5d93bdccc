#include "launch/app/flags/options.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "launch/app/plan/resolve.h"
#include "models/gpt2/gpt2.h"
#include "models/llama/llama.h"
#include "models/registry.h"
#include "runtime/core/error.h"
#include "tests/launch/command_line.h"

namespace ddptrain {
namespace {

/// Of the UsageError; empty if there is none.
std::string message_if_any(const std::vector<const char*>& arguments) {
  try {
    parse(arguments);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

TEST(Options, DefaultsAreThePublishedRecipe) {
  const Options defaults = parse({}).options;
  const Options preset = parse({"--config", DDP_SOURCE_DIR "/configs/cnn.toml"}).options;
  EXPECT_EQ(parse({"--config", DDP_SOURCE_DIR "/configs/cnn.toml", "--print-config"}).print,
            parse({"--print-config"}).print);
  EXPECT_EQ(preset.run.epochs, defaults.run.epochs);
}

TEST(Options, PresetsOfTheGptHaveThePublishedSizes) {
  const std::map<std::string, std::int64_t> sizes = {{"gpt-char", 842496},     {"gpt-mini", 5536768},
                                                     {"gpt2-124m", 124439808}, {"gpt2-355m", 354823168},
                                                     {"gpt2-774m", 774030080}, {"gpt2-1558m", 1557611200}};
  for (const auto& [name, size] : sizes) {
    const std::string path = fmt::format("{}/configs/{}.toml", DDP_SOURCE_DIR, name);
    const CommandLine preset = parse({"--config", path.c_str()});
    const auto sizes_of = preset.workload->sizes();
    const std::int64_t vocabulary = sizes_of.at("vocabulary") > 0 ? sizes_of.at("vocabulary") : 50257;
    const Gpt2Shape shape{sizes_of.at("layers"),       sizes_of.at("width"),    sizes_of.at("heads"),
                          sizes_of.at("feed_forward"), sizes_of.at("sequence"), vocabulary};
    EXPECT_EQ(preset.options.model, "gpt") << name;
    EXPECT_EQ(element_count(gpt2_parameters(shape)), size) << name;
  }
}

TEST(Options, PresetsOfTheLlamaHaveThePublishedSizes) {
  const std::map<std::string, std::int64_t> sizes = {{"llama-char", 820352},       {"smollm-135m", 134515008},
                                                     {"qwen2.5-0.5b", 494032768},  {"llama3.2-1b", 1235814400},
                                                     {"qwen2.5-1.5b", 1543714304}, {"qwen2.5-7b", 7615616512}};
  for (const auto& [name, size] : sizes) {
    const std::string path = fmt::format("{}/configs/{}.toml", DDP_SOURCE_DIR, name);
    const CommandLine preset = parse({"--config", path.c_str()});
    EXPECT_EQ(preset.options.model, "llama") << name;
    EXPECT_EQ(element_count(llama_parameters(LlamaShape::of_sizes(preset.workload->sizes()))), size) << name;
  }
}

/// Flags at the start of the lines of a help text, by their first name.
std::vector<std::string> flags_in(const std::string& help) {
  std::vector<std::string> flags;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("  -", 0) == 0) flags.push_back(line.substr(2, line.find_first_of(" ,", 2) - 2));
  }
  return flags;
}

TEST(Options, TheShortHelpHasFewFlagsAndEndsWithTheTopics) {
  const std::string help = parse({"--help"}).print.value();
  EXPECT_EQ(parse({"--zzz", "-h"}).print, help);
  const auto flags = flags_in(help);
  EXPECT_GE(flags.size(), 20U) << help;
  EXPECT_LE(flags.size(), 30U) << help;
  const std::string last = fmt::format("--help all lists every flag; --help gpt lists the flags of a model ({}).\n",
                                       fmt::join(model_names(), ", "));
  EXPECT_TRUE(help.ends_with(last)) << help;
}

TEST(Options, TheHelpOfALanguageModelHasTheFlagsOfTexts) {
  for (const std::string& model : model_names()) {
    const auto flags = flags_in(parse({"--help", model.c_str()}).print.value());
    const bool has_texts = model == "gpt" || model == "llama";
    for (const char* flag :
         {"--generate", "--sample-every", "--prompt", "--prompts", "--max-tokens", "--temperature"}) {
      EXPECT_EQ(std::count(flags.begin(), flags.end(), flag), has_texts ? 1 : 0) << model << flag;
    }
  }
  const auto common = flags_in(parse({"--help"}).print.value());
  EXPECT_EQ(std::count(common.begin(), common.end(), "--generate"), 1);
}

TEST(Options, EveryFlagIsInTheHelpOfAllTopics) {
  const std::string help = parse({"--help", "all"}).print.value();
  const auto shown = flags_in(help);
  for (const std::string& model : model_names()) {
    std::istringstream config(parse({"--model", model.c_str(), "--print-config"}).print.value());
    for (std::string line; std::getline(config, line);) {
      const std::string flag = "--" + line.substr(0, line.find(' '));
      EXPECT_GT(std::count(shown.begin(), shown.end(), flag), 0) << flag << "\n" << help;
    }
  }
}

TEST(Options, FlagsThatDecideParametersDoNotDependOnGroupsOfTheHelp) {
  const std::string common =
      "config model precision epochs steps batch grad-accum virtual-ranks seed optimizer lr momentum muon-momentum "
      "beta1 "
      "beta2 weight-decay moments master clip-norm on-nonfinite schedule warmup lr-scaling lr-base-batch "
      "comm-dtype data init group outer-steps outer-groups outer-optimizer outer-lr outer-momentum outer-dtype "
      "outer-delay outer-fragments outer-max-age ";
  const std::map<std::string, std::string> more = {{"cnn", "dropout"},
                                                   {"gpt", "layers width heads ff seq vocab dropout val-fraction"},
                                                   {"llama",
                                                    "layers width heads key-heads head-size ff seq vocab norm-epsilon "
                                                    "rope-base rope-scaling qkv-bias head-norms tied-head dropout "
                                                    "val-fraction"}};
  for (const auto& [model, names] : more) {
    std::istringstream words(common + names);
    const std::set<std::string> expected{std::istream_iterator<std::string>(words), {}};
    const auto decide = parse({"--model", model.c_str()}).decides_parameters;
    EXPECT_EQ(std::set<std::string>(decide.begin(), decide.end()), expected) << model;
    EXPECT_EQ(decide.size(), expected.size()) << model;
  }
}

TEST(Options, TimesHaveUnits) {
  EXPECT_EQ(parse({}).options.watchdog.timeout_seconds, 600.0);
  const std::map<std::string, double> times = {{"0", 0.0}, {"2.5", 2.5}, {"90s", 90.0}, {"10m", 600.0}, {"2h", 7200.0}};
  for (const auto& [text, seconds] : times) {
    EXPECT_EQ(parse({"--timeout", text.c_str()}).options.watchdog.timeout_seconds, seconds) << text;
  }
}

TEST(Options, CheckpointsAreDueAfterStepsOrATime) {
  const auto options = [](const char* text) { return parse({"--checkpoint-every", text}).options.checkpoint; };
  EXPECT_EQ(options("1000").every_steps, 1000);
  EXPECT_EQ(options("1000").every_seconds, 0.0);
  EXPECT_EQ(options("1.5m").every_seconds, 90.0);
  EXPECT_EQ(options("2h").every_seconds, 7200.0);
  EXPECT_EQ(options("2h").every_steps, 0);
  for (const char* text : {"0", "0s", "2.5", "-1", "-1m", "3d", "soon", "1 2", ""}) {
    EXPECT_THROW(options(text), UsageError) << text;
  }
}

TEST(Options, ThePeakIsANumber) {
  EXPECT_EQ(parse({}).options.peak_tflops, 0.0);
  EXPECT_EQ(parse({"--peak-tflops", "813.5"}).options.peak_tflops, 813.5);
}

TEST(Options, ARankHangsInAPhaseOrAfterSteps) {
  const HangAt phase = parse({"--hang-at", "2:evaluation"}).options.hang;
  EXPECT_EQ(phase.rank, 2);
  EXPECT_EQ(phase.phase, "evaluation");
  const HangAt step = parse({"--hang-at", "1:30"}).options.hang;
  EXPECT_EQ(step.rank, 1);
  EXPECT_EQ(step.phase, "");
  EXPECT_EQ(step.steps, 30u);
}

TEST(Options, HelpOnAModelShowsItsFlagsAlone) {
  for (const std::string& model : model_names()) {
    const std::string help = parse({"--help", model.c_str()}).print.value();
    EXPECT_EQ(parse({"--model", model.c_str(), "-h"}).print, help);
    EXPECT_EQ(says(help, "  --layers"), model == "gpt" || model == "llama") << help;
    EXPECT_FALSE(says(help, "--epochs")) << help;
  }
}

TEST(Options, AModelTakesItsOwnFlagsAlone) {
  const std::string path = file_with("model.toml", "model = \"gpt\"\nlayers = 3\ndropout = 0.25\n");
  EXPECT_EQ(parse({"--config", path.c_str()}).workload->sizes().at("layers"), 3);
  EXPECT_EQ(parse({"--layers", "5", "--model", "cnn", "--model=gpt"}).workload->sizes().at("layers"), 5);
  for (const std::vector<const char*>& arguments :
       {std::vector<const char*>{"--layers", "3"}, {"--config", path.c_str(), "--model", "cnn"}}) {
    EXPECT_CONTAINS(message_of(arguments), "layers");
  }
}

TEST(Options, UnknownFlagsAreNamedWithTheirNeighboursInTheOrderTyped) {
  const std::string help = " (ddptrain --help all lists the flags)";
  EXPECT_EQ(message_of({"--tiemout", "5"}), "unknown flag --tiemout, did you mean --timeout?" + help);
  EXPECT_EQ(message_of({"--batch", "3", "--zzz=7", "--epoch", "5", "x"}),
            "unknown flag --zzz; unknown flag --epoch, did you mean --epochs?" + help);
  EXPECT_EQ(message_of({"--momentun=-5", "-5"}), "unknown flag --momentun, did you mean --momentum?" + help);
  EXPECT_EQ(message_of({"--batch", "3", "x", "y"}), "unexpected word x; unexpected word y" + help);
  EXPECT_EQ(message_of({"--\x1b[2J"}), "unknown flag --?[2J" + help);
  EXPECT_CONTAINS(message_of({"--layers=3"}), "flag --layers: it is a flag of model gpt, not of cnn");
  EXPECT_EQ(message_of({"--help", "vgg"}),
            fmt::format("--help vgg: unknown topic. Topics: all, {}, names", fmt::join(model_names(), ", ")));
}

std::string printed(std::vector<const char*> arguments) {
  arguments.push_back("--print-config");
  return parse(std::move(arguments)).print.value();
}

TEST(Options, NamesOfOtherProgramsMeanTheSame) {
  for (const auto& [typed, line] : {std::pair{"--batch-size=7", "batch = 7\n"},
                                    {"--batch_size=7", "batch = 7\n"},
                                    {"--bs=7", "batch = 7\n"},
                                    {"--micro-batch-size=7", "batch = 7\n"},
                                    {"--per_device_train_batch_size=7", "batch = 7\n"},
                                    {"--learning-rate=0.5", "lr = 0.5\n"},
                                    {"--learning_rate=0.5", "lr = 0.5\n"},
                                    {"--num-epochs=2", "epochs = 2\n"},
                                    {"--num_epochs=2", "epochs = 2\n"},
                                    {"--max-epochs=2", "epochs = 2\n"},
                                    {"--num_train_epochs=2", "epochs = 2\n"},
                                    {"--gradient-accumulation-steps=3", "grad-accum = 3\n"},
                                    {"--accumulate_grad_batches=3", "grad-accum = 3\n"},
                                    {"--max_iters=9", "steps = 9\n"},
                                    {"--grad-clip=1.5", "clip-norm = 1.5\n"},
                                    {"--max_grad_norm=1.5", "clip-norm = 1.5\n"},
                                    {"--weight_decay=0.25", "weight-decay = 0.25\n"},
                                    {"--warmup-steps=4", "warmup = 4\n"},
                                    {"--bf16", "precision = \"bf16\"\n"},
                                    {"--bf16=True", "precision = \"bf16\"\n"},
                                    {"--bf16=false", "precision = \"auto\"\n"},
                                    {"--amp", "precision = \"auto\"\n"},
                                    {"--precision=bf16-mixed", "precision = \"bf16\"\n"},
                                    {"--dtype=bfloat16", "precision = \"bf16\"\n"},
                                    {"--no-cuda", "device = \"cpu\"\n"},
                                    {"--device=gpu", "device = \"cuda\"\n"},
                                    {"--dist-backend=nccl", "comm = \"nccl\"\n"},
                                    {"--offload_optimizer", "offload = \"optimizer\"\n"},
                                    {"--optimizer-cpu-offload=false", "offload = \"none\"\n"},
                                    {"--zero_stage=2", "zero = \"2\"\n"}}) {
    EXPECT_CONTAINS(printed({typed}), line) << ": " << typed;
  }
  EXPECT_CONTAINS(printed({"--arch", "gpt", "--block-size", "32", "--n_head", "2"}), "seq = 32\n");
  EXPECT_CONTAINS(printed({"--model=gpt", "--hidden-size=768"}), "width = 768\n");
  EXPECT_CONTAINS(printed({"--model=mlp", "--hidden-size=768"}), "hidden = 768\n");
  EXPECT_CONTAINS(printed({"--bf16", "False", "--batch", "3"}), "batch = 3\n");
  for (const char* typed : {"--bf16=banana", "--bf16=n", "--bf16=", "--no-cuda=2"}) {
    EXPECT_CONTAINS(message_if_any({typed}), std::string(typed) + ": give true or false");
  }
}

TEST(Options, NamesThatMeanSomethingElseElsewhereAreExplained) {
  using Notes = std::vector<std::string>;
  EXPECT_EQ(
      parse({"--gradient_accumulation_steps=40"}).notes,
      Notes{"--gradient_accumulation_steps is --grad-accum here: micro-steps of each rank in a step. nanoGPT divides "
            "its number by the ranks"});
  EXPECT_EQ(parse({"--save-freq", "10"}).notes,
            Notes{"--save-freq is --checkpoint-every here: steps, or a time such as 10m. Some programs count epochs"});
  EXPECT_EQ(parse({"--eval-freq=1"}).notes,
            Notes{"--eval-freq is --eval-every here: steps. Some programs count epochs"});
  EXPECT_EQ(parse({"--grad-accum=40", "--save-steps=5", "--eval-interval=5", "--batch-size", "8"}).notes, Notes{});
  const std::string path = file_with("named.toml", "batch = 8\nsave_freq = 10\n");
  EXPECT_EQ(
      parse({"--config", path.c_str()}).notes,
      Notes{path +
            ":2:1: save_freq is --checkpoint-every here: steps, or a time such as 10m. Some programs count epochs"});
}

TEST(Options, FlagsOfOtherProgramsWithoutACounterpartHaveAHint) {
  for (const auto& [line, hint] :
       {std::pair{"--nproc-per-node 4", "unknown flag --nproc-per-node: mpirun sets the number of ranks: mpirun -np N"},
        {"--nnodes=2 --nproc_per_node=8", "unknown flags --nnodes, --nproc-per-node: mpirun"},
        {"--master_addr n1 --master_port 29500", "unknown flags --master-addr, --master-port: MPI connects"},
        {"-np 4", "unknown flag -np: mpirun"},
        {"--warmup-epochs 5", "--warmup counts steps"},
        {"-b 16", "unknown flag -b: --batch"},
        {"-e d12", "llm.c's -e, the model, is --model gpt with --layers"},
        {"-h 1", "-h 1: the flag prints the help; llm.c's -h, HellaSwag, has no counterpart"},
        {"-d 524288", "llm.c's -d, the tokens of a step, is --batch x --seq"},
        {"-n 5000", "llm.c's -n, the steps between checkpoints, is --checkpoint DIR"},
        {"-nk 5", "unknown flag -nk: --keep N"},
        {"-v 250", "llm.c's -v, the steps between evaluations, is --eval-every"},
        {"-q 0.0", "for llm.c's -q, the last learning rate"},
        {"-s 20000", "llm.c's -s, the steps between texts that the model writes, is --sample-every"},
        {"-j val_*.bin", "--data finds val shards beside the training shards"},
        {"-pn 8 -pr 0", "unknown flags -pn, -pr: MPI connects the ranks"},
        {"-y 1", "unknown flag -y: --checkpoint DIR --resume auto"},
        {"--fp16", "there is no fp16: --precision bf16"},
        {"--n_layer 3", "unknown flag --n-layer: it is a flag (--layers here) of model gpt, not of cnn"}}) {
    EXPECT_CONTAINS(message_of_line(line), hint) << ": " << line;
  }
}

/// Words of the lines of --help names: a flag and its aliases, or names and their hint.
TEST(Options, EveryOtherNameIsAnAliasOrHasAHint) {
  std::istringstream lines(parse({"--help", "names"}).print.value());
  std::set<std::string> names;
  bool hints = false;
  int count = 0;
  for (std::string line; std::getline(lines, line);) {
    hints |= line.find("no counterpart") != std::string::npos;
    const bool lists_names = line.rfind(hints ? "  -" : "      -", 0) == 0;
    for (const std::string& name : lists_names ? words_of(line) : std::vector<std::string>{}) {
      ++count;
      if (name != "--hidden-size") {
        EXPECT_TRUE(names.insert(name).second) << name << " is listed twice";
      }
      if (hints) {
        EXPECT_CONTAINS(message_of({name.c_str()}), "unknown flag " + name + ": ");
        continue;
      }
      bool is_taken = false;
      for (const std::string& model : model_names()) {
        const std::string message = message_if_any({"--model", model.c_str(), (name + "=\x01").c_str()});
        is_taken |= message.find("unknown flag") == std::string::npos;
      }
      EXPECT_TRUE(is_taken) << name;
    }
  }
  EXPECT_GT(count, 250);
}

TEST(Options, EmptyPathsAndNegativeCountsAreTold) {
  for (const char* flag : {"--metrics", "--trace", "--checkpoint", "--config", "--resume", "--data", "--flight",
                           "--inspect", "--export"}) {
    EXPECT_EQ(message_of({flag, ""}), std::string(flag) + " '': the path is empty. Give one, or leave the flag out.");
  }
  for (const char* flag : {"--data", "--init", "--save"}) {
    EXPECT_EQ(message_of({"--model", "gpt", flag, ""}),
              std::string(flag) + " '': the path is empty. Give one, or leave the flag out.");
  }
  EXPECT_EQ(message_of({"--seed", "-1"}), "--seed -1: give 0 to 2^63 - 1");
  EXPECT_EQ(message_of({"--batch", ""}), "--batch '': give an integer, or auto");
  EXPECT_CONTAINS(message_of_line("--model mlp --hidden 8 --config"), "--config: give a value (FILE)");
  EXPECT_EQ(message_of({"--warmup=-3"}), "--warmup -3: give 0 to 10^12");
}

TEST(Options, FlagsThatATaskIgnoresAreRefused) {
  const std::vector<std::vector<std::string>> tasks = {{"--generate", "--init", "i", "--prompt", "a"},
                                                       {"--evaluate", "--init", "i"},
                                                       {"--export", "e", "--resume", "c"},
                                                       {"--inspect", "c"},
                                                       {"--replay-log", "f"}};
  const auto message = [](std::vector<std::string> words, const std::string& flag, const std::string& value) {
    words.insert(words.end(), {"--model", "gpt", flag, value});
    std::vector<const char*> pointers;
    for (const std::string& word : words) pointers.push_back(word.c_str());
    return message_if_any(pointers);
  };
  for (const std::vector<std::string>& task : tasks) {
    const std::string name = task.front() + " with ";
    for (const char* flag : {"--save", "--trace", "--checkpoint"}) {
      EXPECT_CONTAINS(message(task, flag, "x"), name + flag + ": only training writes");
    }
    EXPECT_CONTAINS(message(task, "--sample-every", "5"), name + "--sample-every: only training writes");
    EXPECT_EQ(message(task, "--seed", "3"), "");
    const bool evaluates = task.front() == "--evaluate";
    const bool measures = evaluates || task.front() == "--generate";
    EXPECT_EQ(message(task, "--metrics", "m").empty(), measures) << name;
    EXPECT_EQ(message(task, "--zero", "3").empty(), evaluates) << name;
    EXPECT_EQ(message(task, "--virtual-ranks", "2").empty(), evaluates) << name;
    const bool has_model = evaluates || task.front() == "--generate" || task.front() == "--export";
    EXPECT_EQ(message(task, "--seq", "64").empty(), has_model) << name;
    for (const auto& [flag, value] : {std::pair("--zero", "0"), {"--virtual-ranks", "0"}, {"--sample-every", "0"}}) {
      EXPECT_EQ(message(task, flag, value), "") << name << flag << ": the default";
    }
  }
  EXPECT_EQ(message({"--export", "e", "--resume", "auto"}, "--checkpoint", "c"), "");
}

TEST(Options, TasksThatDoNotTrainIgnoreHowAFileTrains) {
  const auto message = [&](const std::string& lines, std::vector<const char*> words) {
    const std::string file = file_with("to_train.toml", "model = \"gpt\"\n" + lines);
    words.insert(words.end(), {"--config", file.c_str()});
    return message_if_any(words);
  };
  const std::string divided = "optimizer = \"muon\"\nzero = \"3\"\noverlap = \"off\"\ntp = 2\n";
  const std::string groups = "outer-steps = 5\nouter-momentum = 0.5\nouter-groups = 2\nouter-max-age = 7\n";
  for (const std::vector<const char*>& task :
       std::vector<std::vector<const char*>>{{"--generate", "--init", "i", "--prompt", "a"},
                                             {"--evaluate", "--init", "i", "--tp", "1"},
                                             {"--export", "e", "--resume", "c"},
                                             {"--inspect", "c"},
                                             {"--replay-log", "f"}}) {
    EXPECT_EQ(message(divided + groups, task), "") << task.front();
  }
  EXPECT_CONTAINS(message(divided, {"--evaluate", "--init", "i"}), "--evaluate with --tp 2");
  for (const char* task : {"--describe", "--dry-run", "--allow-change"}) {
    EXPECT_CONTAINS(message(divided, {task}), "--optimizer muon with --tp 2");
    EXPECT_CONTAINS(message(groups, {task}), ": it is for groups that share a log");
  }
  EXPECT_CONTAINS(message("", {"--generate", "--init", "i", "--prompt", "a", "--outer-steps", "6"}),
                  "--outer-steps 6: it");
  // Other weights than those to train from.
  EXPECT_EQ(message("init = \"i\"\n", {"--generate", "--resume", "c", "--prompt", "a"}), "");
  const std::string resume = "resume = \"auto\"\ncheckpoint = \"c\"\n";
  EXPECT_EQ(message(resume, {"--generate", "--init", "i", "--prompt", "a"}), "");
  EXPECT_EQ(message(resume, {"--evaluate", "--init", "i"}), "");
  EXPECT_CONTAINS(message("", {"--generate", "--init", "i", "--resume", "c", "--prompt", "a"}),
                  "name the weights with");
  EXPECT_EQ(message("prompts = \"p\"\n", {"--generate", "--init", "i", "--prompt", "a"}), "");
  EXPECT_EQ(message("prompt = \"a\"\nsample-every = 5\n", {"--prompts", "p"}), "");
  // Files that training writes.
  const std::string file =
      file_with("to_train.toml", "model = \"gpt\"\nsave = \"i\"\ntrace = \"t\"\nmetrics = \"m\"\n");
  const auto written = [&](std::vector<const char*> words) {
    words.insert(words.end(), {"--config", file.c_str()});
    std::vector<std::string> paths;
    for (const OutputFile& output : parse(words).outputs) {
      if (!output.path.empty()) paths.push_back(output.path);
    }
    return fmt::format("{}", fmt::join(paths, " "));
  };
  EXPECT_EQ(written({"--generate", "--init", "i", "--prompt", "a"}), "m");
  EXPECT_EQ(written({"--evaluate", "--init", "i"}), "m");
  EXPECT_EQ(written({"--export", "e", "--resume", "c"}), "e/model.safetensors e/config.json");
  EXPECT_EQ(written({"--inspect", "c"}), "");
  EXPECT_EQ(written({"--dry-run"}), "m t i/model.safetensors i/config.json");
}

TEST(Options, AnEmptyUrlOfGroupsIsRefused) {
  EXPECT_CONTAINS(message_of({"--outer", ""}), "--outer '': the URL is empty");
  EXPECT_CONTAINS(message_of({"--outer", "", "--group", "a"}), "--outer '': the URL is empty");
}

TEST(Options, LearningRateScalesWithTheSamplesOfAStep) {
  const float peak = 1e-3f;
  const auto rate = [](const char* scaling) {
    return scaled_learning_rate(parse({"--lr-scaling", scaling, "--batch", "256", "--grad-accum", "4"}).options, 8);
  };
  EXPECT_FLOAT_EQ(rate("none"), peak);
  EXPECT_FLOAT_EQ(rate("linear"), 16 * peak);  // 8 * 256 * 4 / 512
  EXPECT_FLOAT_EQ(rate("sqrt"), 4 * peak);
}

TEST(Options, LearningRateOfVirtualRanksDoesNotDependOnRanks) {
  const Options options = parse({"--lr-scaling", "linear", "--batch", "512", "--virtual-ranks", "4"}).options;
  EXPECT_FLOAT_EQ(scaled_learning_rate(options, 1), 4e-3f);
  EXPECT_FLOAT_EQ(scaled_learning_rate(options, 4), 4e-3f);
}

TEST(Options, TrainerGetsWhatWasAsked) {
  const Options options = parse({"--bucket-mb", "0.5", "--last-bucket-kb", "1.5", "--schedule", "cosine", "--clip-norm",
                                 "2", "--overlap", "none", "--zero", "1", "--comm-dtype", "fp32", "--seed", "9"})
                              .options;
  const TrainerOptions trainer = trainer_options(options, 2, 100);
  EXPECT_EQ(trainer.bucket_bytes, 524288u);
  EXPECT_EQ(trainer.last_bucket_bytes, 1536u);
  EXPECT_EQ(trainer.optimizer.schedule.kind, LrScheduleKind::cosine);
  EXPECT_EQ(trainer.optimizer.schedule.total_steps, 100u);
  EXPECT_FLOAT_EQ(trainer.clip_norm, 2.0f);
  EXPECT_EQ(trainer.zero, Zero::state);
  EXPECT_EQ(trainer.gradient_type, DType::f32);
  const TrainerOptions defaults = trainer_options(parse({}).options, 2, 100);
  EXPECT_EQ(defaults.zero, Zero::nothing);
  EXPECT_EQ(defaults.gradient_type, std::nullopt);
}

TEST(Options, BucketsMayHaveAUnit) {
  for (const char* text : {"2", "2M", "2m", "2MiB", "2048k", "2097152B"}) {
    EXPECT_EQ(parse({"--bucket-mb", text}).options.bucket_mb, 2.0) << text;
  }
  EXPECT_EQ(parse({"--bucket-mb=512K"}).options.bucket_mb, 0.5);
  EXPECT_EQ(parse({"--last-bucket-kb", "1m"}).options.last_bucket_kb, 1024.0);
  EXPECT_CONTAINS(message_of_line("--bucket-mb 2X"), "--bucket-mb 2X: give a number, or a size with a unit");
  EXPECT_CONTAINS(message_of_line("--bucket-mb 0k"), "--bucket-mb 0k: give a size above 0");
}

TEST(Options, PrecisionFollowsTheDevice) {
  EXPECT_EQ(chosen_format(parse({}).options, DeviceKind::cuda), NumberFormat::bf16);
  EXPECT_EQ(chosen_format(parse({}).options, DeviceKind::cpu), NumberFormat::fp32);
  EXPECT_EQ(chosen_format(parse({"--precision", "tf32"}).options, DeviceKind::cuda), NumberFormat::tf32);
}

TEST(Options, FlagsThatDoNotGoWithThePrecisionAreTold) {
  const auto check = [](std::vector<const char*> arguments, DeviceKind device = DeviceKind::cuda) {
    const CommandLine command_line = parse(std::move(arguments));
    check_precision(command_line.options, *command_line.workload, device);
  };
  const auto message = [&](const std::vector<const char*>& arguments, DeviceKind device = DeviceKind::cuda) {
    return error_message([&] { check(arguments, device); });
  };
  check({"--precision", "bf16"});
  check({"--comm-dtype", "fp32", "--precision", "fp32"});
  check({"--comm-dtype", "fp32", "--precision", "tf32"});
  check({"--comm-dtype", "bf16", "--precision", "bf16"});
  EXPECT_CONTAINS(message({"--comm-dtype", "bf16", "--precision", "fp32"}), "--comm-dtype bf16");
  EXPECT_CONTAINS(message({"--comm-dtype", "fp32", "--precision", "bf16"}), "model cnn");
  check({"--model", "gpt", "--comm-dtype", "fp32", "--precision", "bf16"});
  check({"--comm-dtype", "bf16"}, DeviceKind::cpu);
  for (const char* precision : {"fp8", "bf16", "tf32"}) {
    EXPECT_CONTAINS(message({"--model", "gpt", "--precision", precision}, DeviceKind::cpu),
                    fmt::format("--precision {}: the CPU computes in fp32", precision));
  }
  check({"--master", "off"});
  check({"--master", "off"}, DeviceKind::cpu);
  check({"--moments", "bf16", "--precision", "fp32"});
  EXPECT_CONTAINS(message({"--master", "off", "--precision", "tf32"}), "--master off: with --precision tf32");
  check({"--comm-dtype", "bf16", "--precision", "fp32", "--comm", "mpi"});
  EXPECT_CONTAINS(message({"--comm-dtype", "bf16", "--zero", "1"}, DeviceKind::cpu), "--zero 1");
  EXPECT_CONTAINS(message({"--comm-dtype", "bf16", "--virtual-ranks", "2"}, DeviceKind::cpu), "--virtual-ranks");
}

TEST(Options, StateGoesToTheHostFromGpusAlone) {
  const Options plain = parse({}).options, offload = parse({"--offload", "optimizer"}).options;
  EXPECT_FALSE(plain.trainer.state_on_host);
  EXPECT_TRUE(trainer_options(offload, 1, 10).state_on_host);
  check_offload(plain, DeviceKind::cpu);
  check_offload(offload, DeviceKind::cuda);
  EXPECT_CONTAINS(error_message([&] { check_offload(offload, DeviceKind::cpu); }), "--offload optimizer: a CPU comp");
}

TEST(Options, GradientsAreRoundedOnTheirWayOnlyOverMpiAndFromF32) {
  const auto rounds = [](std::vector<const char*> arguments, DeviceKind device) {
    return sends_bf16_between_hosts(parse(std::move(arguments)).options, device);
  };
  EXPECT_TRUE(rounds({"--comm-dtype", "bf16"}, DeviceKind::cpu));
  EXPECT_FALSE(rounds({}, DeviceKind::cpu));
  EXPECT_FALSE(rounds({"--comm-dtype", "bf16"}, DeviceKind::cuda));
  EXPECT_FALSE(rounds({"--comm-dtype", "bf16", "--comm", "mpi"}, DeviceKind::cuda));
  EXPECT_TRUE(rounds({"--comm-dtype", "bf16", "--comm", "mpi", "--precision", "tf32"}, DeviceKind::cuda));
}

TEST(Options, FlagsThatDoNotGoTogetherAreTold) {
  for (const auto& [line, part] :
       {std::pair{"--zero 2 --overlap off", "--overlap off: with --zero 2"},
        {"--zero 3 --overlap none", "--overlap none: with --zero 3"},
        {"--optimizer muon --zero 2", "--optimizer muon with --zero 2: it needs whole gradients of matrices. Use --ze"},
        {"--model gpt --optimizer muon --tp 2", "--optimizer muon with --tp 2: it needs whole matrices"},
        {"--model gpt --optimizer lamb --tp 2",
         "--optimizer lamb with --tp 2: it needs norms of whole parameters, and"},
        {"--precision fp8", "--precision fp8: model cnn"},
        {"--share-gpu --device cpu", "--share-gpu with --device cpu"},
        {"--pp 2", "--pp 2: model cnn is one unit, which cannot be cut. "},
        {"--tp 2",
         "--tp 2: model cnn is one unit, which cannot be cut, and its layers are not split. Use --model gpt or "
         "llama, "},
        {"--model llama --qkv-bias on --head-norms on", "--qkv-bias on with --head-norms on"},
        {"--model llama --key-heads 2", "--key-heads 2: give a number that divides --heads 9"},
        {"--model llama --heads 5", "--heads 5: give a number that divides --width 576"},
        {"--generate --prompt x", "--generate: model cnn has no texts. Use --model gpt or llama."},
        {"--model gpt --generate --prompt x", "--generate: name the weights with --init PATH, or a checkpoint"},
        {"--model gpt --generate --prompt x --init i --resume r", "--generate: name the weights"},
        {"--model gpt --generate --init i", "--generate: give either --prompt TEXT or --prompts FILE"},
        {"--model gpt --generate --init i --prompt x --prompts y", "--generate: give either --prompt TEXT or"},
        {"--sample-every 5", "--sample-every 5: model cnn has no texts. Use --model gpt or llama"},
        {"--model gpt --sample-every 5 --prompt x --prompts y", "--sample-every: give --prompt TEXT or --prompts"},
        {"--model gpt --prompt x", "--prompt: it is for texts: add --sample-every N to train, or --generate"},
        {"--model gpt --sample-every 0 --max-tokens 5", "--max-tokens: it is for texts"},
        {"--model gpt --pp 2 --precision fp8", "--precision fp8 with --pp 2"},
        {"--model gpt --tp 2 --precision fp8", "--precision fp8 with --tp 2"},
        {"--model gpt --pp 2 --evaluate", "--evaluate with --pp 2"},
        {"--evaluate", "--evaluate: name the weights with --init PATH"},
        {"--evaluate --resume x --init y", "--export DIR"},
        {"--evaluate --init x --generate", "--evaluate with --generate: "},
        {"--resume x --export y --inspect z", "--inspect with --export: "},
        {"--inspect y --replay-log z", "--replay-log with --inspect: "},
        {"--describe --dry-run", "--describe with --dry-run: "},
        {"--evaluate --init x --outer redis://h/r --group a", "--evaluate with --outer: "},
        {"--replay-log x --outer redis://h/r --group a", "--replay-log with --outer: "},
        {"--group a", "--group a: it is for groups that share a log: add --outer URL"},
        {"--outer redis://h/r --group a --master off", "--outer with --master off: "},
        {"--outer-groups 2", "--outer-groups 2: it is for groups that share a log: add --outer URL"},
        {"--outer-delay 0", "--outer-delay 0: it is for groups"},
        {"--outer-dtype int8", "--outer-dtype int8: it is for groups"},
        {"--outer-record x", "--outer-record x: it is for groups"},
        {"--outer redis://h/r --group a --outer-groups 2 --outer-max-age 100", "--outer-max-age 100 with --outer-gr"},
        {"--outer redis://h/r --group a --outer-momentum 0.5", "--outer-momentum 0.5: the outer optimizer is sgd"}}) {
    EXPECT_CONTAINS(message_of_line(line), part) << ": " << line;
  }
}

TEST(Options, WrongValuesAreUsageErrorsThatNameTheFlag) {
  std::istringstream lines(
      "--foo; --batch 0; --batch many; --epochs 0; --epochs 9223372036854775807; --steps -1; "
      "--steps 99999999999999999999; --log-every 99999999999999999999; --model resnet; --overlap maybe; --lr 0; "
      "--lr nan; --lr inf; --weight-decay inf; --weight-decay nan; --clip-norm inf; --beta1 nan; --momentum inf; "
      "--bucket-mb inf; --last-bucket-kb nan; --min-seconds inf; --peak-tflops inf; --timeout inf; --timeout nan; "
      "--checkpoint-every inf; --val-fraction nan --model gpt; --dropout inf --model gpt; --beta1 1; --momentum -0.1; "
      "--optimizer adagrad; --moments fp8; --master on; --offload on; --precision fp9; --device tpu; --threads 0; "
      "--threads 100000; --grad-accum 0; --bucket-mb 0; --clip-norm -1; --zero 4; --comm-dtype fp16; "
      "--peak-tflops -1; --peak-tflops gemm; --fail-at 3; --hang-at 1; --hang-at 1:lunch; --timeout soon; "
      "--timeout -1; --timeout 5mx; --config /nonexistent.toml; --log-level loud; --dropout 0.5; --seq 8; "
      "--tokenizer x; --sample-every -1; --sample-every x; --max-tokens 0; --temperature -1; --top-k -1; --top-p 0; "
      "--top-p 1.5; --rope-base 0 --model "
      "llama; --norm-epsilon 0 --model llama; --rope-scaling 8 --model llama; --rope-scaling 8:4:1:8192 --model llama; "
      "--rope-scaling 8:1:4:8192: --model llama; --rope-scaling 8:1:4:8192:1 --model llama; --heads 5 --model gpt; "
      "--layers 0 --model gpt; --vocab 16777217 --model gpt; "
      "--dropout 1 --model gpt; --dropout nan --model gpt; --val-fraction 1 --model gpt; --recompute all --model gpt");
  for (std::string line; std::getline(lines, line, ';');) {
    std::string flag;
    std::istringstream(line) >> flag;
    EXPECT_CONTAINS(message_of_line(line), flag) << ": " << line;
  }
}

}  // namespace
}  // namespace ddptrain
