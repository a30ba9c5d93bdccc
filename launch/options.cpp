#include "launch/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include "models/registry.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

template <class T>
using Names = std::vector<std::pair<std::string, T>>;

const Names<bool> kOnOff = {{"on", true}, {"off", false}};

/// An option that takes one of a few names. What is parsed stays text, so that --print-config writes it back.
class Choices {
 public:
  template <class T>
  CLI::Option* add(CLI::App& app, const std::string& flag, T& value, const Names<T>& names, const std::string& help) {
    std::string start;
    std::string all;
    for (const auto& [name, meaning] : names) {
      if (start.empty() && meaning == value) start = name;
      if (!all.empty()) all += '|';
      all += name;
    }
    const auto set = [flag, all, names, &value](const std::string& text) {
      for (const auto& [name, meaning] : names) {
        if (name == text) {
          value = meaning;
          return;
        }
      }
      usage_error("{} {}: give one of {}", flag, text, all);
    };
    return app.add_option_function<std::string>(flag, set, help)->type_name(all)->default_str(start);
  }
};

void add_run_options(CLI::App& app, Options& o) {
  const Names<std::string> devices = {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}};
  const Names<std::string> precisions = {
      {"auto", "auto"}, {"fp32", "fp32"}, {"tf32", "tf32"}, {"bf16", "bf16"}, {"fp8", "fp8"}};
  const Names<MemoryFormat> formats = {{"nhwc", MemoryFormat::nhwc}, {"nchw", MemoryFormat::nchw}};
  const std::string group = "Model and device";
  Choices choices;
  app.add_option("--model", o.model, fmt::format("One of: {}", fmt::join(model_names(), ", ")))->group(group);
  choices.add(app, "--device", o.device, devices, "auto: GPUs where there are some")->group(group);
  choices
      .add(app, "--precision", o.precision, precisions,
           "auto: bf16 with fp32 master weights on GPUs, else fp32; fp8: bf16, and FP8 in a GPT's linear layers")
      ->group(group);
  app.add_option("--threads", o.threads, "Threads per rank (CPU)")->group(group);
  choices.add(app, "--memory-format", o.memory_format, formats, "Of cuDNN's convolutions")->group(group);
  choices.add(app, "--fused", o.fused, kOnOff, "Fused kernels where there are some")->group(group);
  choices
      .add(app, "--tune", o.tune, kOnOff,
           "GPU matrix products by timing; runs may then differ in their last bits from each other")
      ->group(group);
}

void add_gpt_options(CLI::App& app, Options& o) {
  const Names<Recompute> recomputes = {
      {"none", Recompute::none}, {"gelu", Recompute::gelu}, {"block", Recompute::block}};
  const std::string group = "GPT";
  Choices choices;
  app.add_option("--layers", o.gpt.layers, "Blocks")->group(group);
  app.add_option("--width", o.gpt.width, "Size of a token's activation")->group(group);
  app.add_option("--heads", o.gpt.heads, "Attention heads; they divide --width")->group(group);
  app.add_option("--ff", o.gpt.feed_forward, "Width within the feed-forward half of a block")->group(group);
  app.add_option("--seq", o.gpt.sequence, "Tokens of a window")->group(group);
  app.add_option("--vocab", o.gpt.vocabulary, "Different tokens (0: 256 for text, 50257 for token files)")
      ->group(group);
  choices
      .add(app, "--recompute", o.recompute, recomputes, "What backward computes again in place of keeping it in memory")
      ->group(group);
  app.add_option("--init", o.init,
                 "Start from a GPT-2 of Hugging Face: model folder or safetensors file; its shape wins")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--save", o.save, "Leave the trained model there: model.safetensors and config.json of transformers")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--val-fraction", o.val_fraction, "End of the text that is kept for validation, without val shards")
      ->group(group);
  app.add_option("--sample-every", o.sample_every, "Steps between samples of what the model writes (0: none)")
      ->group(group);
  app.add_option("--prompt", o.prompt, "What samples begin with")->group(group);
  app.add_option("--sample-tokens", o.sample_tokens, "Length of a sample")->group(group);
  app.add_option("--temperature", o.temperature, "Of samples; 0: always the likeliest token")->group(group);
}

void add_training_options(CLI::App& app, Options& o) {
  const std::string group = "Training";
  app.add_option("--data", o.data,
                 "cnn: folder of the data set, or synthetic[:COUNT]; default: the usual places. gpt: text, token files "
                 "(.bin), a folder or pattern of them, or synthetic[:COUNT[:VOCAB]]")
      ->type_name("PATH")
      ->group(group);
  app.add_option("--epochs", o.epochs, "Passes over the training set")->group(group);
  app.add_option("--steps", o.steps, "Steps in all, in place of --epochs (0: by epochs)")->group(group);
  app.add_option("--batch,--micro-batch", o.batch, "Samples (images, windows) per rank and micro-step")->group(group);
  app.add_option("--grad-accum", o.grad_accum, "Micro-steps whose gradients add up to a step")->group(group);
  app.add_option("--seed", o.seed, "Of initial parameters, order of samples and dropout")->group(group);
  app.add_option("--dropout", o.dropout, "cnn: on (auto) or off; gpt: a rate, on (0.1) or off (auto)")
      ->type_name("on|off|RATE")
      ->group(group);
}

void add_optimizer_options(CLI::App& app, Options& o) {
  Names<OptimizerKind> kinds;
  for (std::size_t i = 0; i < kOptimizerRules.size(); ++i) {
    kinds.emplace_back(kOptimizerRules[i].name, static_cast<OptimizerKind>(i));
  }
  const Names<LrScaling> scalings = {
      {"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}};
  const Names<ScheduleKind> schedules = {
      {"constant", ScheduleKind::constant}, {"cosine", ScheduleKind::cosine}, {"linear", ScheduleKind::linear}};
  const std::string group = "Optimizer";
  Choices choices;
  choices.add(app, "--optimizer", o.optimizer.kind, kinds, "")->group(group);
  app.add_option("--lr", o.optimizer.schedule.peak, "Learning rate after warm-up, before scaling")->group(group);
  app.add_option("--momentum", o.optimizer.momentum, "sgd")->group(group);
  app.add_option("--beta1", o.optimizer.beta1, "adam, adamw, lamb, lion")->group(group);
  app.add_option("--beta2", o.optimizer.beta2, "adam, adamw, lamb, lion (its paper: 0.99)")->group(group);
  app.add_option("--weight-decay", o.optimizer.weight_decay, "Not applied to biases")->group(group);
  app.add_option("--clip-norm", o.clip_norm, "Largest norm of the whole gradient (0: no clipping)")->group(group);
  choices
      .add(app, "--stochastic-rounding", o.optimizer.stochastic_rounding, kOnOff,
           "Round bf16 weights from their fp32 master weights up or down at random, right on average")
      ->group(group);
  choices.add(app, "--schedule", o.optimizer.schedule.kind, schedules, "Learning rate after warm-up")->group(group);
  app.add_option("--warmup", o.optimizer.schedule.warmup_steps, "Steps of linear warm-up")->group(group);
  choices.add(app, "--lr-scaling", o.lr_scaling, scalings, "With the samples of a step over --lr-base-batch")
      ->group(group);
  app.add_option("--lr-base-batch", o.lr_base_batch, "Samples of a step that --lr is meant for")->group(group);
}

void add_runtime_options(CLI::App& app, Options& o) {
  const Names<OverlapMode> overlaps = {{"on", OverlapMode::on}, {"off", OverlapMode::off}, {"none", OverlapMode::none}};
  const Names<bool> zero = {{"0", false}, {"1", true}};
  const Names<std::string> types = {{"auto", "auto"}, {"bf16", "bf16"}, {"fp32", "fp32"}};
  const Names<bool> symmetric = {{"auto", true}, {"on", true}, {"off", false}};
  const std::string group = "Communication and execution";
  Choices choices;
  app.add_option("--bucket-mb", o.bucket_mb, "Largest bucket of gradients, MiB")->group(group);
  app.add_option("--last-bucket-kb", o.last_bucket_kb, "The last bucket, which nothing hides, KiB")->group(group);
  choices.add(app, "--overlap", o.overlap, overlaps, "Sum gradients during backward, after it, or not at all")
      ->group(group);
  choices.add(app, "--zero", o.zero, zero, "1: master weights and moments divided among the ranks (ZeRO-1)")
      ->group(group);
  choices
      .add(app, "--comm-dtype", o.comm_dtype, types, "Of gradients, as they are added and sent; auto: as --precision")
      ->group(group);
  choices
      .add(app, "--symmetric", o.symmetric, symmetric,
           "NCCL symmetric memory, where possible: on one node, with NCCL_ALGO and NCCL_PROTO not set")
      ->group(group);
  choices
      .add(app, "--fused-sum", o.fused_sum, kOnOff,
           "Last bucket: sum over ranks and update in one kernel of ours, where --symmetric is on and possible")
      ->group(group);
  app.add_option(
         "--comm-ctas", o.comm_ctas,
         "Thread blocks of a collective, and multiprocessors that compute leaves to it (0: NCCL's choice, none)")
      ->group(group);
  choices.add(app, "--graph", o.graph, kOnOff, "Whole steps as CUDA graphs")->group(group);
}

void add_output_options(CLI::App& app, Options& o, std::string& fail_at) {
  const Names<std::string> levels = {{"trace", "trace"}, {"debug", "debug"}, {"info", "info"},
                                     {"warn", "warn"},   {"error", "error"}, {"off", "off"}};
  const std::string group = "Measurement and output";
  Choices choices;
  choices.add(app, "--baseline", o.baseline, kOnOff, "Measure one rank alone and the scaling efficiency")->group(group);
  app.add_option("--metrics", o.metrics, "File of JSON lines; the last one is the summary")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--peak-tflops", o.peak_tflops,
                 "Of one device, for MFU, such as ddpbench gemm measures (0: of the data sheet)")
      ->group(group);
  app.add_option("--trace", o.trace, "Chrome trace (JSON, for Perfetto) of a few steps after training")
      ->type_name("FILE")
      ->group(group);
  choices.add(app, "--log-level", o.log_level, levels, "Log on standard error")->group(group);
  app.add_option("--log-every", o.log_every, "Steps between measurements within an epoch (0: none)")->group(group);
  app.add_option("--eval-every", o.eval_every, "Steps between evaluations within an epoch (0: none)")->group(group);
  app.add_option("--eval-samples", o.eval_samples, "Samples of an evaluation at most (0: the whole test set)")
      ->group(group);
  app.add_option("--fail-at", fail_at, "For tests: this rank throws before this step")
      ->type_name("RANK:STEP")
      ->configurable(false)
      ->group(group);
}

template <class T>
void require(bool condition, const char* flag, T value, const char* what) {
  if (!condition) usage_error("{} {}: give {}", flag, value, what);
}

void validate_gpt(const Options& o) {
  const GptShape& s = o.gpt;
  require(s.layers > 0 && s.layers <= 1000, "--layers", s.layers, "1 to 1000");
  require(s.width > 0 && s.width <= 65536, "--width", s.width, "1 to 65536");
  require(s.heads > 0 && s.width % s.heads == 0, "--heads", s.heads, "a number that divides --width");
  require(s.feed_forward > 0 && s.feed_forward <= 1 << 20, "--ff", s.feed_forward, "1 to 1048576");
  require(s.sequence > 0 && s.sequence <= 1 << 20, "--seq", s.sequence, "1 to 1048576");
  require(s.vocabulary >= 0 && s.vocabulary <= 65536, "--vocab", s.vocabulary, "1 to 65536, or 0 for that of the data");
  require(o.val_fraction > 0 && o.val_fraction < 1, "--val-fraction", o.val_fraction, "above 0 and below 1");
  require(o.sample_every >= 0, "--sample-every", o.sample_every, "0 or more");
  require(!o.prompt.empty(), "--prompt", o.prompt, "at least one character");
  require(o.sample_tokens > 0 && o.sample_tokens <= 1 << 20, "--sample-tokens", o.sample_tokens, "1 to 1048576");
  require(o.temperature >= 0, "--temperature", o.temperature, "0 or more");
  if (is_language_model(o.model)) return;
  if (o.precision == "fp8") usage_error("--precision fp8: model {} has no FP8 layers. Use bf16.", o.model);
  if (o.sample_every > 0) usage_error("--sample-every {}: model {} does not write text", o.sample_every, o.model);
  if (!o.init.empty()) usage_error("--init {}: model {} is no GPT", o.init, o.model);
  if (!o.save.empty()) usage_error("--save {}: model {} is no GPT", o.save, o.model);
}

/// The rate of --dropout: 1 for "on", 0 for "off", -1 for "auto".
double dropout_rate(const Options& o) {
  if (o.dropout == "auto") return -1.0;
  if (o.dropout == "on") return 1.0;
  if (o.dropout == "off") return 0.0;
  char* end = nullptr;
  const double rate = std::strtod(o.dropout.c_str(), &end);
  const bool number = end != o.dropout.c_str() && *end == '\0' && rate >= 0.0 && rate < 1.0;
  if (!number || !is_language_model(o.model)) {
    usage_error("--dropout {}: give on, off or, for a GPT, a rate of at least 0 and below 1", o.dropout);
  }
  return rate;
}

void validate(const Options& o) {
  const auto& opt = o.optimizer;
  const auto names = model_names();
  if (std::find(names.begin(), names.end(), o.model) == names.end()) {
    usage_error("--model {}: there is no such model; there are: {}", o.model, fmt::join(names, ", "));
  }
  constexpr std::int64_t kMostSteps = 1'000'000'000'000;  // counts beyond are mistakes, and sums of them overflow
  require(o.threads > 0 && o.threads <= 1024, "--threads", o.threads, "1 to 1024");
  require(o.epochs > 0 && o.epochs <= 1'000'000, "--epochs", o.epochs, "1 to 1000000");
  require(o.steps >= 0 && o.steps <= kMostSteps, "--steps", o.steps, "1 to 10^12, or 0 to count by epochs");
  require(o.batch > 0, "--batch", o.batch, "at least 1");
  require(o.grad_accum > 0, "--grad-accum", o.grad_accum, "at least 1");
  require(std::isfinite(opt.schedule.peak) && opt.schedule.peak > 0, "--lr", opt.schedule.peak, "a number above 0");
  require(opt.momentum >= 0 && opt.momentum < 1, "--momentum", opt.momentum, "at least 0 and below 1");
  require(opt.beta1 >= 0 && opt.beta1 < 1, "--beta1", opt.beta1, "at least 0 and below 1");
  require(opt.beta2 >= 0 && opt.beta2 < 1, "--beta2", opt.beta2, "at least 0 and below 1");
  require(opt.weight_decay >= 0, "--weight-decay", opt.weight_decay, "0 or more");
  require(o.clip_norm >= 0, "--clip-norm", o.clip_norm, "0 or more");
  require(opt.schedule.warmup_steps <= kMostSteps, "--warmup", opt.schedule.warmup_steps, "0 to 10^12");
  require(o.lr_base_batch > 0, "--lr-base-batch", o.lr_base_batch, "at least 1");
  require(o.bucket_mb > 0 && o.bucket_mb < 1e6, "--bucket-mb", o.bucket_mb, "a size above 0");
  require(o.last_bucket_kb >= 0 && o.last_bucket_kb < 1e9, "--last-bucket-kb", o.last_bucket_kb, "0 or more");
  if (const OptimizerRule& rule = rule_of(opt.kind); o.zero && rule.whole_parameters) {
    usage_error(
        "--zero 1: {} needs the norms of whole parameters, of which each rank has only a part. Use --zero 0, or "
        "another optimizer.",
        rule.name);
  }
  require(o.seed <= INT64_MAX, "--seed", o.seed, "0 to 2^63 - 1");
  require(o.comm_ctas >= 0 && o.comm_ctas <= 32, "--comm-ctas", o.comm_ctas, "0 to 32");
  require(o.peak_tflops >= 0 && o.peak_tflops < 1e6, "--peak-tflops", o.peak_tflops, "0 or more");
  require(o.log_every >= 0 && o.log_every <= kMostSteps, "--log-every", o.log_every, "0 to 10^12");
  require(o.eval_every >= 0 && o.eval_every <= kMostSteps, "--eval-every", o.eval_every, "0 to 10^12");
  require(o.eval_samples >= 0, "--eval-samples", o.eval_samples, "0 or more");
  validate_gpt(o);
  dropout_rate(o);
}

void parse_fail_at(const std::string& text, Options& options) {
  if (text.empty()) return;
  std::istringstream in(text);
  char colon = 0;
  if (!(in >> options.fail_rank >> colon >> options.fail_step) || colon != ':' || !in.eof() || options.fail_rank < 0 ||
      options.fail_step < 0) {
    usage_error("--fail-at {}: give RANK:STEP, two numbers counted from 0", text);
  }
}

}  // namespace

CommandLine parse_command_line(int argc, const char* const* argv) {
  CommandLine result;
  std::string fail_at;
  CLI::App app{"Trains a model with synchronous data parallelism: mpirun -np W ddptrain --model cnn", "ddptrain"};
  app.option_defaults()->always_capture_default()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  add_run_options(app, result.options);
  add_gpt_options(app, result.options);
  add_training_options(app, result.options);
  add_optimizer_options(app, result.options);
  add_runtime_options(app, result.options);
  add_output_options(app, result.options, fail_at);
  app.set_help_flag("-h,--help", "Print this and exit")->group("Program");
  bool version = false;
  bool print_config = false;
  app.add_flag("--version", version, "Print versions and exit")->configurable(false)->group("Program");
  app.add_flag("--print-config", print_config, "Print a file for --config and exit")
      ->configurable(false)
      ->group("Program");
  app.set_config("--config", "", "File of these names (name = value); flags win")->type_name("FILE")->group("Program");
  app.allow_config_extras(CLI::config_extras_mode::error);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    result.print = app.help();
    return result;
  } catch (const CLI::ConfigError& error) {
    usage_error("--config {}: a line is not understood or its name is unknown: {} (ddptrain --print-config shows all)",
                app.get_config_ptr()->as<std::string>(), error.what());
  } catch (const CLI::FileError&) {
    usage_error("--config {}: the file cannot be read", app.get_config_ptr()->as<std::string>());
  } catch (const CLI::ParseError& error) {
    usage_error("{} (ddptrain --help lists the flags)", error.what());
  }
  if (version) {
    result.print = version_text();
    return result;
  }
  validate(result.options);
  parse_fail_at(fail_at, result.options);
  if (print_config) result.print = app.config_to_str(true, false);
  return result;
}

std::string version_text() {
  const std::string cuda =
      built_with_cuda() ? fmt::format("CUDA {}\ncuDNN {}\nNCCL {}\n", cuda_version(), cudnn_version(), nccl_version())
                        : "CUDA, cuDNN, NCCL: not in this build\n";
  return fmt::format("ddptrain {}\n{}MPI {}\n", DDPTRAIN_VERSION, cuda, mpi_version());
}

Precision chosen_precision(const Options& options, DeviceKind kind) {
  if (options.precision == "fp32") return Precision::fp32;
  if (options.precision == "tf32") return Precision::tf32;
  if (options.precision == "bf16" || options.precision == "fp8") return Precision::bf16;
  return kind == DeviceKind::cuda ? Precision::bf16 : Precision::fp32;
}

void check_precision(const Options& options, Precision precision) {
  const bool bf16 = precision == Precision::bf16;
  if (options.comm_dtype == "bf16" && !bf16) {
    usage_error(
        "--comm-dtype bf16: gradients are {}, and sent as they are. Use --comm-dtype auto, or --precision bf16.",
        name_of(precision));
  }
  if (options.comm_dtype == "fp32" && bf16 && !takes_f32_gradients(options.model)) {
    usage_error("--comm-dtype fp32: model {} computes bf16 gradients. Use --comm-dtype auto, or --precision fp32.",
                options.model);
  }
  if (options.optimizer.stochastic_rounding && !bf16) {
    usage_error(
        "--stochastic-rounding on: weights are {}, and only bf16 ones are rounded. Use --stochastic-rounding off, or "
        "--precision bf16.",
        name_of(precision));
  }
}

DeviceOptions device_options(const Options& options, DeviceKind kind) {
  DeviceOptions device;
  device.precision = chosen_precision(options, kind);
  device.memory_format = options.memory_format;
  device.fused = options.fused;
  device.tune = options.tune;
  device.fp8 = options.precision == "fp8";
  device.threads = options.threads;
  device.communication_multiprocessors = options.comm_ctas;
  return device;
}

float scaled_learning_rate(const Options& options, int world_size) {
  const double samples = static_cast<double>(options.batch) * static_cast<double>(options.grad_accum) * world_size;
  const double ratio = samples / static_cast<double>(options.lr_base_batch);
  const double peak = options.optimizer.schedule.peak;
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
  TrainerOptions result;
  result.model = options.model;
  result.batch = options.batch;
  result.grad_accum = options.grad_accum;
  result.seed = options.seed;
  const double rate = dropout_rate(options);
  result.model_options.dropout = rate != 0.0;
  result.model_options.gpt_dropout = rate == 1.0 ? 0.1f : static_cast<float>(std::max(rate, 0.0));
  result.model_options.gpt = options.gpt;
  result.model_options.recompute = options.recompute;
  result.optimizer = options.optimizer;
  result.optimizer.schedule.peak = scaled_learning_rate(options, world_size);
  result.optimizer.schedule.total_steps = static_cast<std::uint64_t>(total_steps);
  result.optimizer.rounding_seed = options.seed;
  result.clip_norm = options.clip_norm;
  result.bucket_bytes = static_cast<std::size_t>(options.bucket_mb * 1048576.0);
  result.last_bucket_bytes = static_cast<std::size_t>(options.last_bucket_kb * 1024.0);
  if (options.comm_dtype != "auto") result.gradient_type = options.comm_dtype == "bf16" ? DType::bf16 : DType::f32;
  result.zero = options.zero;
  result.overlap = options.overlap;
  result.fused_sum = options.fused_sum;
  result.graph = options.graph;
  return result;
}

RunOptions run_options(const Options& options) {
  RunOptions result;
  result.epochs = options.epochs;
  result.steps = options.steps;
  result.log_every = options.log_every;
  result.eval_every = options.eval_every;
  result.eval_samples = options.eval_samples;
  result.sample_every = options.sample_every;
  result.trace = options.trace;
  result.baseline = options.baseline;
  result.replicas_agree = options.overlap != OverlapMode::none;
  result.fail_rank = options.fail_rank;
  result.fail_step = options.fail_step;
  return result;
}

}  // namespace ddptrain
