#include "launch/flag_groups.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "launch/config_file.h"
#include "launch/options.h"
#include "models/registry.h"
#include "models/workload.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/flags.h"

namespace ddptrain {
namespace {

/// See flags_without_effect().
constexpr const char* kWithoutEffect =
    "device share-gpu threads memory-format fused tune tune-cache "
    "bucket-mb last-bucket-kb overlap zero comm hierarchical symmetric fused-sum comm-ctas graph "
    "checkpoint checkpoint-every keep on-checkpoint-error resume allow-change "
    "baseline min-seconds calibration-seconds metrics tensorboard peak-tflops trace log-level log-every eval-every "
    "eval-samples verify-every timeout flight fail-at hang-at "
    "evaluate generate inspect export describe dry-run print-config version help config";

constexpr std::int64_t kMostVirtualRanks = 65536;
constexpr std::int64_t kMostSteps = 1'000'000'000'000;  // counts beyond are mistakes, and sums of them overflow

void add_device_flags(CLI::App& app, Options& o) {
  const Names<std::string> devices = {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}};
  const Names<std::string> precisions = {
      {"auto", "auto"}, {"fp32", "fp32"}, {"tf32", "tf32"}, {"bf16", "bf16"}, {"fp8", "fp8"}};
  const Names<MemoryFormat> formats = {{"nhwc", MemoryFormat::nhwc}, {"nchw", MemoryFormat::nchw}};
  app.option_defaults()->group("Training");
  app.add_option("--model", o.model, "Model to train")->type_name(fmt::format("{}", fmt::join(model_names(), "|")));
  add_choice(
      app, "--precision", o.precision, precisions,
      "Number format of weights and compute. auto: bf16 with fp32 master weights on GPUs from compute capability "
      "8.0, else fp32. fp8: bf16 with FP8 linear layers (gpt)");
  app.option_defaults()->group("Device");
  add_choice(app, "--device", o.device, devices, "Where to compute; auto: GPUs if the machine has any, else CPUs");
  app.add_flag("--share-gpu", o.share_gpu,
               "Allow more ranks than GPUs (needs NCCL 2.30 or --comm mpi; launch/share-gpu makes it faster)")
      ->configurable(false);  // of a machine
  app.add_option("--threads", o.compute.threads, "CPU threads per rank");
  add_choice(app, "--memory-format", o.compute.memory_format, formats, "Memory layout of cuDNN's convolutions");
  add_choice(app, "--fused", o.compute.fused, kOnOff, "Use fused kernels where they exist");
  add_choice(app, "--tune", o.compute.tune, kOnOff,
             "Use the fastest implementations of GPU matrix multiplications and attention, by timing. The "
             "last bits may differ between runs without a common --tune-cache");
  app.add_option("--tune-cache", o.tune_cache,
                 "Folder that keeps the choices of --tune on for later runs; off: no folder (default "
                 "~/.cache/ddptrain)")
      ->type_name("DIR|off");
}

void check_device(const Options& o, const Workload& workload) {
  require(o.compute.threads > 0 && o.compute.threads <= 1024, "--threads", o.compute.threads, "1 to 1024");
  if (o.precision == "fp8" && !workload.supports_fp8()) {
    usage_error("--precision fp8: model {} has no FP8 layers. Use bf16.", o.model);
  }
}

/// Of a flag that takes a word, too, which is not `text`.
template <class Number>
void parse_number(const char* flag, const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || rest != end)
    throw CLI::ConversionError(fmt::format("Could not convert: {} = {}", flag, text));
}

void parse_batch(const std::string& text, Options& o) {
  o.auto_batch = text == "auto";
  if (!o.auto_batch) parse_number("--batch", text, o.trainer.batch);
}

void add_training_flags(CLI::App& app, Options& o) {
  app.option_defaults()->group("Training");
  app.add_option("--epochs", o.run.epochs, "Passes over the training set");
  app.add_option("--steps", o.run.steps, "Number of steps, instead of --epochs (0: use --epochs)");
  app.add_option_function<std::string>(
         "--batch,--micro-batch", [&o](const std::string& text) { parse_batch(text, o); },
         "Samples per rank and micro-step; auto: the largest power of two that fits in memory")
      ->type_name(kNumberOrAuto)
      ->default_str(std::to_string(o.trainer.batch));
  app.add_option("--grad-accum", o.trainer.grad_accum, "Micro-steps per step; a step adds their gradients");
  app.add_option("--virtual-ranks", o.trainer.virtual_ranks,
                 "Train as if on this many ranks; the result is the same, bit for bit, on every number of ranks "
                 "that divides it (0: off)");
  app.add_option("--seed", o.trainer.seed, "Seed of the initial parameters, the order of samples and dropout");
}

void check_training(const Options& o) {
  require(o.run.epochs > 0 && o.run.epochs <= 1'000'000, "--epochs", o.run.epochs, "1 to 1000000");
  require(o.run.steps >= 0 && o.run.steps <= kMostSteps, "--steps", o.run.steps, "1 to 10^12, or 0 to count by epochs");
  require(o.trainer.batch > 0, "--batch", o.trainer.batch, "at least 1");
  require(o.trainer.grad_accum > 0, "--grad-accum", o.trainer.grad_accum, "at least 1");
  require(o.trainer.virtual_ranks >= 0 && o.trainer.virtual_ranks <= kMostVirtualRanks, "--virtual-ranks",
          o.trainer.virtual_ranks, "a power of two up to 65536, or 0");
  require(o.trainer.seed <= INT64_MAX, "--seed", o.trainer.seed, "0 to 2^63 - 1");
}

void add_optimizer_flags(CLI::App& app, Options& o) {
  Names<OptimizerKind> kinds;
  for (std::size_t i = 0; i < kOptimizerRules.size(); ++i) {
    kinds.emplace_back(kOptimizerRules[i].name, static_cast<OptimizerKind>(i));
  }
  const Names<LrScaling> scalings = {
      {"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}};
  const Names<ScheduleKind> schedules = {
      {"constant", ScheduleKind::constant}, {"cosine", ScheduleKind::cosine}, {"linear", ScheduleKind::linear}};
  const Names<OnNonFinite> on_nonfinite = {{"stop", OnNonFinite::stop}, {"skip", OnNonFinite::skip}};
  OptimizerSettings& settings = o.trainer.optimizer;
  app.option_defaults()->group("Optimizer");
  add_choice(app, "--optimizer", settings.kind, kinds, "Update rule");
  app.add_option("--lr", settings.schedule.peak, "Learning rate after warm-up, before --lr-scaling");
  app.add_option("--momentum", settings.momentum, "Momentum of sgd");
  app.add_option("--beta1", settings.beta1, "beta1 of adam, adamw, lamb and lion");
  app.add_option("--beta2", settings.beta2, "beta2 of adam, adamw, lamb and lion (the Lion paper uses 0.99)");
  app.add_option("--weight-decay", settings.weight_decay, "Weight decay; biases have none");
  app.add_option("--clip-norm", o.trainer.clip_norm, "Largest norm of the whole gradient (0: no clipping)");
  add_choice(app, "--on-nonfinite", o.trainer.on_nonfinite, on_nonfinite,
             "If a loss or gradient is NaN or infinite: stop, or skip the step (10 in a row stop the run)");
  add_choice(app, "--stochastic-rounding", settings.stochastic_rounding, kOnOff,
             "Round fp32 master weights to bf16 stochastically");
  add_choice(app, "--schedule", settings.schedule.kind, schedules, "Learning-rate schedule after warm-up");
  app.add_option("--warmup", settings.schedule.warmup_steps, "Steps of linear warm-up");
  add_choice(app, "--lr-scaling", o.lr_scaling, scalings,
             "Scale --lr by the samples per step divided by --lr-base-batch");
  app.add_option("--lr-base-batch", o.lr_base_batch, "Samples per step that --lr is chosen for");
}

void check_optimizer(const Options& o) {
  const OptimizerSettings& s = o.trainer.optimizer;
  require(std::isfinite(s.schedule.peak) && s.schedule.peak > 0, "--lr", s.schedule.peak, "a number above 0");
  require(s.momentum >= 0 && s.momentum < 1, "--momentum", s.momentum, "at least 0 and below 1");
  require(s.beta1 >= 0 && s.beta1 < 1, "--beta1", s.beta1, "at least 0 and below 1");
  require(s.beta2 >= 0 && s.beta2 < 1, "--beta2", s.beta2, "at least 0 and below 1");
  require(s.weight_decay >= 0, "--weight-decay", s.weight_decay, "0 or more");
  require(o.trainer.clip_norm >= 0, "--clip-norm", o.trainer.clip_norm, "0 or more");
  require(s.schedule.warmup_steps <= kMostSteps, "--warmup", s.schedule.warmup_steps, "0 to 10^12");
  require(o.lr_base_batch > 0, "--lr-base-batch", o.lr_base_batch, "at least 1");
  if (const OptimizerRule& rule = rule_of(s.kind); o.trainer.zero && rule.whole_parameters) {
    usage_error(
        "--zero 1: {} needs the norms of whole parameters, of which each rank has only a part. Use --zero 0, or "
        "another optimizer.",
        rule.name);
  }
}

void add_communication_flags(CLI::App& app, Options& o) {
  const Names<OverlapMode> overlaps = {{"on", OverlapMode::on},
                                       {"backward", OverlapMode::backward},
                                       {"off", OverlapMode::off},
                                       {"none", OverlapMode::none}};
  const Names<bool> zero = {{"0", false}, {"1", true}};
  const Names<std::optional<DType>> types = {{"auto", std::nullopt}, {"bf16", DType::bf16}, {"fp32", DType::f32}};
  const Names<CommLibrary> libraries = {
      {"auto", CommLibrary::automatic}, {"nccl", CommLibrary::nccl}, {"mpi", CommLibrary::mpi}};
  const Names<bool> symmetric = {{"auto", true}, {"on", true}, {"off", false}};
  app.option_defaults()->group("Communication");
  app.add_option("--bucket-mb", o.bucket_mb, "Largest gradient bucket, in MiB");
  app.add_option("--last-bucket-kb", o.last_bucket_kb, "Size of the last bucket, which nothing overlaps, in KiB");
  add_choice(app, "--overlap", o.trainer.overlap, overlaps,
             "When to reduce gradients. on: during backward and, with MPI on CPUs, the next forward. "
             "backward: during backward. off: after backward. none: never");
  add_choice(app, "--zero", o.trainer.zero, zero, "1: divide master weights and moments among the ranks (ZeRO-1)");
  add_choice(app, "--comm-dtype", o.trainer.gradient_type, types,
             "Number format of gradients that are sent; auto: as --precision. bf16 with fp32 weights: MPI "
             "only, between hosts (on one host between ranks), added in fp32");
  add_choice(app, "--comm", o.comm, libraries,
             "Library for all-reduce. auto: NCCL on GPUs, MPI on CPUs. mpi on GPUs: through pinned host "
             "memory");
  add_choice(app, "--hierarchical", o.hierarchical, kOnOff,
             "MPI on several hosts: reduce gradients within each host first; off: each rank sends for itself");
  add_choice(app, "--symmetric", o.symmetric, symmetric,
             "Use NCCL symmetric memory if possible (one node; NCCL_ALGO and NCCL_PROTO not set)");
  add_choice(app, "--fused-sum", o.trainer.fused_sum, kOnOff,
             "Reduce the last bucket and update its weights in one kernel, if --symmetric is on and possible");
  app.add_option("--comm-ctas", o.comm_ctas,
                 "Thread blocks per collective; compute leaves as many multiprocessors free (0: NCCL chooses, "
                 "none are left free)");
  add_choice(app, "--graph", o.trainer.graph, kOnOff, "Run whole steps as CUDA graphs");
}

void check_communication(const Options& o) {
  require(o.bucket_mb > 0 && o.bucket_mb < 1e6, "--bucket-mb", o.bucket_mb, "a size above 0");
  require(o.last_bucket_kb >= 0 && o.last_bucket_kb < 1e9, "--last-bucket-kb", o.last_bucket_kb, "0 or more");
  require(o.comm_ctas >= 0 && o.comm_ctas <= 32, "--comm-ctas", o.comm_ctas, "0 to 32");
}

/// "90", or with a unit of time "90s", "10m", "2h".
struct Amount {
  double number = 0.0;
  double seconds_of_unit = 0.0;  ///< 0: no unit.
};

std::optional<Amount> parse_amount(const std::string& text) {
  static const std::map<std::string, double> units = {{"", 0.0}, {"s", 1.0}, {"m", 60.0}, {"h", 3600.0}};
  std::istringstream in(text);
  Amount amount;
  std::string unit;
  const bool read = static_cast<bool>(in >> amount.number);
  in >> unit;
  if (!read || units.count(unit) == 0 || !in.eof()) return std::nullopt;
  amount.seconds_of_unit = units.at(unit);
  return amount;
}

/// Steps, or a time: 10m.
void parse_checkpoint_every(const std::string& text, CheckpointOptions& options) {
  const Amount amount = parse_amount(text).value_or(Amount{});
  const bool by_time = amount.seconds_of_unit > 0.0;
  const bool fits = amount.number <= static_cast<double>(kMostSteps) && amount.number >= (by_time ? 0.001 : 1.0);
  if (!fits || (!by_time && amount.number != std::floor(amount.number))) {
    usage_error("--checkpoint-every {}: give a number of steps, such as 1000, or a time, such as 10m (s, m, h)", text);
  }
  options.every_steps = by_time ? 0 : static_cast<std::int64_t>(amount.number);
  options.every_seconds = amount.number * amount.seconds_of_unit;
}

void add_checkpoint_flags(CLI::App& app, Options& o) {
  const Names<bool> reactions = {{"stop", true}, {"continue", false}};
  app.option_defaults()->group("Checkpoints");
  app.add_option("--checkpoint", o.checkpoint.folder, "Folder for checkpoints, the same for all hosts")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--checkpoint-every", [&o](const std::string& text) { parse_checkpoint_every(text, o.checkpoint); },
         "Steps between checkpoints, or a time such as 90s, 10m or 2h")
      ->type_name("STEPS|TIME")
      ->default_str("10m");
  app.add_option("--keep", o.checkpoint.keep, "Number of complete checkpoints to keep, the newest ones");
  add_choice(app, "--on-checkpoint-error", o.checkpoint.stop_on_error, reactions,
             "If a checkpoint cannot be written (disk full): stop or continue the run");
  app.add_option("--resume", o.resume,
                 "Resume from this checkpoint; auto: from the newest undamaged checkpoint in --checkpoint, if "
                 "one exists")
      ->type_name("auto|PATH");
  app.add_flag("--allow-change", o.allow_change, "Resume although flags that decide the parameters have other values")
      ->configurable(false);
}

void check_checkpoints(const Options& o) {
  require(o.checkpoint.keep > 0, "--keep", o.checkpoint.keep, "at least 1");
  if (o.resume == "auto" && o.checkpoint.folder.empty()) {
    usage_error("--resume auto: looks in the folder of --checkpoint, which is not given");
  }
}

void parse_fail_at(const std::string& text, RunOptions& run) {
  std::istringstream in(text);
  char colon = 0;
  if (!(in >> run.fail_rank >> colon >> run.fail_step) || colon != ':' || !in.eof() || run.fail_rank < 0 ||
      run.fail_step < 0) {
    usage_error("--fail-at {}: give RANK:STEP, two numbers counted from 0", text);
  }
}

void parse_hang_at(const std::string& text, HangAt& hang) {
  std::istringstream in(text);
  char colon = 0;
  std::string when;
  if (!(in >> hang.rank >> colon >> when) || colon != ':' || hang.rank < 0) {
    usage_error("--hang-at {}: give RANK:PHASE or RANK:STEP", text);
  }
  const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
  if (std::all_of(when.begin(), when.end(), is_digit) && when.size() < 19) {
    hang.steps = std::stoll(when);
    return;
  }
  static constexpr std::array kPhases = {"start-up", "training", "evaluation", "calibration", "trace", "end"};
  if (std::find(kPhases.begin(), kPhases.end(), when) == kPhases.end()) {
    usage_error("--hang-at {}: {} is no phase. Phases: {}", text, when, fmt::join(kPhases, ", "));
  }
  hang.phase = when;
}

/// Seconds of "90", "90s", "10m" or "2h".
double parse_duration(const char* flag, const std::string& text) {
  const auto amount = parse_amount(text);
  if (!amount || !(amount->number >= 0.0 && amount->number < 1e9)) {
    usage_error("{} {}: give seconds, or a number with s, m or h", flag, text);
  }
  return amount->number * (amount->seconds_of_unit > 0.0 ? amount->seconds_of_unit : 1.0);
}

void add_failure_flags(CLI::App& app, Options& o) {
  app.option_defaults()->group("Failures");
  app.add_option_function<std::string>(
         "--timeout", [&o](const std::string& text) { o.watchdog.timeout_seconds = parse_duration("--timeout", text); },
         "Longest wait for other ranks: seconds, or 90s, 10m, 2h (0: no limit); tripled until the first "
         "step ends")
      ->type_name("TIME")
      ->default_str("10m");
  app.add_option("--flight", o.watchdog.flight,
                 "Folder for flight records of a timeout (default: one in the temporary folder)")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--fail-at", [&o](const std::string& text) { parse_fail_at(text, o.run); },
         "For tests: this rank throws before this step")
      ->type_name("RANK:STEP")
      ->configurable(false);
  app.add_option_function<std::string>(
         "--hang-at", [&o](const std::string& text) { parse_hang_at(text, o.hang); },
         "For tests: this rank hangs after this many steps or in a phase: start-up, training, "
         "evaluation, calibration, trace or end")
      ->type_name("RANK:STEP|PHASE")
      ->configurable(false);
}

void parse_peak(const std::string& text, Options& o) {
  o.measures_peak = text == "gemm";
  o.peak_tflops = 0.0;
  if (!o.measures_peak) parse_number("--peak-tflops", text, o.peak_tflops);
}

void add_output_flags(CLI::App& app, Options& o) {
  const Names<std::string> levels = {{"trace", "trace"}, {"debug", "debug"}, {"info", "info"},
                                     {"warn", "warn"},   {"error", "error"}, {"off", "off"}};
  app.option_defaults()->group("Measurement and output");
  add_choice(app, "--baseline", o.run.baseline, kOnOff, "Measure the single-rank baseline and the scaling efficiency");
  app.add_option("--min-seconds", o.run.min_seconds,
                 "Shortest time of measured steps, in seconds; extra steps after training do not change the "
                 "parameters");
  app.add_option("--calibration-seconds", o.run.calibration_seconds,
                 "Longest time of the baseline measurement, in seconds (0: a quarter of the training or of "
                 "--min-seconds, 4 to 20 s). It ends once the efficiency is known within a point");
  app.add_option("--metrics", o.metrics, "Write metrics as JSON lines; the last line is the summary")
      ->type_name("FILE");
  app.add_option("--tensorboard", o.tensorboard,
                 "Write a TensorBoard event file below this folder, in a folder per run")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--peak-tflops", [&o](const std::string& text) { parse_peak(text, o); },
         "Peak TFLOP/s of one device, for MFU. 0: data sheet. gemm: measured before training")
      ->type_name(kRateOrGemm)
      ->default_str("0");
  app.add_option("--trace", o.run.trace, "Write a Chrome trace (JSON, for Perfetto) of a few steps after training")
      ->type_name("FILE");
  add_choice(app, "--log-level", o.log_level, levels, "Log level on standard error");
  app.add_option("--log-every", o.run.log_every,
                 "Steps between lines in the log, --metrics and --tensorboard (0: none)");
  app.add_option("--eval-every", o.run.eval_every, "Steps between evaluations within an epoch (0: none)");
  app.add_option("--eval-samples", o.run.eval_samples, "Most test samples per evaluation (0: the whole test set)");
  app.add_option("--verify-every", o.run.verify_every,
                 "Steps between comparisons of weights and optimizer state across ranks (0: parameters only, at "
                 "the end)");
}

void check_output(const Options& o) {
  require(o.peak_tflops >= 0 && o.peak_tflops < 1e6, "--peak-tflops", o.peak_tflops, "0 or more, or gemm");
  if (o.measures_peak && o.precision == "fp8") {
    usage_error("--peak-tflops gemm: it measures bf16, which is not the peak of --precision fp8. Give a number, or 0.");
  }
  require(o.run.min_seconds >= 0 && o.run.min_seconds <= 1e6, "--min-seconds", o.run.min_seconds, "0 to 10^6");
  require(o.run.calibration_seconds >= 0 && o.run.calibration_seconds <= 1e6, "--calibration-seconds",
          o.run.calibration_seconds, "0 to 10^6");
  require(o.run.log_every >= 0 && o.run.log_every <= kMostSteps, "--log-every", o.run.log_every, "0 to 10^12");
  require(o.run.eval_every >= 0 && o.run.eval_every <= kMostSteps, "--eval-every", o.run.eval_every, "0 to 10^12");
  require(o.run.verify_every >= 0 && o.run.verify_every <= kMostSteps, "--verify-every", o.run.verify_every,
          "0 to 10^12");
  require(o.run.eval_samples >= 0, "--eval-samples", o.run.eval_samples, "0 or more");
}

}  // namespace

void add_model_flags(CLI::App& app, const std::string& model, Workload& workload) {
  app.option_defaults()->group("Model " + model);
  workload.add_flags(app);
}

void add_flags(CLI::App& app, const std::string& model, Workload& workload, Options& options) {
  add_device_flags(app, options);
  add_model_flags(app, model, workload);
  add_training_flags(app, options);
  add_optimizer_flags(app, options);
  add_communication_flags(app, options);
  add_checkpoint_flags(app, options);
  add_output_flags(app, options);
  add_failure_flags(app, options);
  for (const char* flag : {"--memory-format", "--fused", "--tune-cache", "--stochastic-rounding", "--bucket-mb",
                           "--last-bucket-kb", "--hierarchical", "--symmetric", "--fused-sum", "--comm-ctas", "--graph",
                           "--calibration-seconds", "--fail-at", "--hang-at"}) {
    app.get_option(flag)->group(kExpertGroup);
  }
}

std::set<std::string> flags_without_effect(const Workload& workload) {
  std::istringstream words(kWithoutEffect);
  std::set<std::string> names{std::istream_iterator<std::string>(words), {}};
  const auto of_model = workload.flags_without_effect();
  names.insert(of_model.begin(), of_model.end());
  return names;
}

void check_flags(const Options& options, const Workload& workload) {
  check_device(options, workload);
  workload.check_flags();
  check_training(options);
  check_optimizer(options);
  check_communication(options);
  check_checkpoints(options);
  check_output(options);
}

}  // namespace ddptrain
