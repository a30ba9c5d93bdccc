#include "launch/flag_groups.h"

#include <CLI/CLI.hpp>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

#include "launch/config_file.h"
#include "launch/options.h"
#include "models/workload.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/flags.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kMostVirtualRanks = 65536;
constexpr std::int64_t kMostSteps = 1'000'000'000'000;  // counts beyond are mistakes, and sums of them overflow

void add_device_flags(CLI::App& app, Options& o) {
  const Names<std::string> devices = {{"auto", "auto"}, {"cpu", "cpu"}, {"cuda", "cuda"}};
  const Names<std::string> precisions = {
      {"auto", "auto"}, {"fp32", "fp32"}, {"tf32", "tf32"}, {"bf16", "bf16"}, {"fp8", "fp8"}};
  const Names<MemoryFormat> formats = {{"nhwc", MemoryFormat::nhwc}, {"nchw", MemoryFormat::nchw}};
  app.option_defaults()->group("Training");
  app.add_option("--model", o.model, "The network to train, one of the models below");
  add_choice(app, "--precision", o.precision, precisions,
             "auto: bf16 with fp32 master weights on GPUs that have it (8.0 and newer), else fp32; fp8: bf16, and FP8 "
             "in a GPT's linear layers");
  app.option_defaults()->group("Device");
  add_choice(app, "--device", o.device, devices, "auto: GPUs where there are some");
  app.add_flag(
         "--share-gpu", o.share_gpu,
         "More ranks than GPUs: the ranks of a host take its GPUs in turn (NCCL 2.30 or newer, or --comm mpi; fast "
         "with launch/share-gpu)")
      ->configurable(false);  // of a machine
  app.add_option("--threads", o.compute.threads, "Threads per rank (CPU)");
  add_choice(app, "--memory-format", o.compute.memory_format, formats, "Of cuDNN's convolutions");
  add_choice(app, "--fused", o.compute.fused, kOnOff, "Fused kernels where there are some");
  add_choice(
      app, "--tune", o.compute.tune, kOnOff,
      "GPU matrix products and attention by timing; runs may then differ in their last bits from each other, except "
      "those that take the choices from the same cache");
  app.add_option("--tune-cache", o.tune_cache,
                 "Folder in which --tune on keeps its choices for later runs, or off (~/.cache/ddptrain)")
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
  app.add_option("--steps", o.run.steps, "Steps in all, in place of --epochs (0: by epochs)");
  app.add_option_function<std::string>(
         "--batch,--micro-batch", [&o](const std::string& text) { parse_batch(text, o); },
         "Samples (images, windows) per rank and micro-step; auto: the largest power of two that finds memory")
      ->type_name(kNumberOrAuto)
      ->default_str(std::to_string(o.trainer.batch));
  app.add_option("--grad-accum", o.trainer.grad_accum, "Micro-steps whose gradients add up to a step");
  app.add_option(
      "--virtual-ranks", o.trainer.virtual_ranks,
      "Train as on so many ranks, with the same bits on any number that divides it (0: as on those there are)");
  app.add_option("--seed", o.trainer.seed, "Of initial parameters, order of samples and dropout");
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
  add_choice(app, "--optimizer", settings.kind, kinds, "");
  app.add_option("--lr", settings.schedule.peak, "Learning rate after warm-up, before scaling");
  app.add_option("--momentum", settings.momentum, "sgd");
  app.add_option("--beta1", settings.beta1, "adam, adamw, lamb, lion");
  app.add_option("--beta2", settings.beta2, "adam, adamw, lamb, lion (its paper: 0.99)");
  app.add_option("--weight-decay", settings.weight_decay, "Not applied to biases");
  app.add_option("--clip-norm", o.trainer.clip_norm, "Largest norm of the whole gradient (0: no clipping)");
  add_choice(
      app, "--on-nonfinite", o.trainer.on_nonfinite, on_nonfinite,
      "A step whose loss or gradient is NaN or infinite: ends the run, or is left out (10 in a row end the run)");
  add_choice(app, "--stochastic-rounding", settings.stochastic_rounding, kOnOff,
             "Round bf16 weights from their fp32 master weights up or down at random, right on average");
  add_choice(app, "--schedule", settings.schedule.kind, schedules, "Learning rate after warm-up");
  app.add_option("--warmup", settings.schedule.warmup_steps, "Steps of linear warm-up");
  add_choice(app, "--lr-scaling", o.lr_scaling, scalings, "With the samples of a step over --lr-base-batch");
  app.add_option("--lr-base-batch", o.lr_base_batch, "Samples of a step that --lr is meant for");
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
  app.option_defaults()->group("Communication and execution");
  app.add_option("--bucket-mb", o.bucket_mb, "Largest bucket of gradients, MiB");
  app.add_option("--last-bucket-kb", o.last_bucket_kb, "The last bucket, which nothing hides, KiB");
  add_choice(app, "--overlap", o.trainer.overlap, overlaps,
             "Sum gradients during backward and, over MPI on CPUs, the next forward; during backward; after it; or not "
             "at all");
  add_choice(app, "--zero", o.trainer.zero, zero, "1: master weights and moments divided among the ranks (ZeRO-1)");
  add_choice(
      app, "--comm-dtype", o.trainer.gradient_type, types,
      "Of gradients, as they are added and sent; auto: as --precision. bf16 beside fp32 weights: over MPI, they are "
      "sent in bf16 between hosts (on one host between ranks) and added in fp32")
      ->group("Training");
  app.add_option("--local-steps", o.trainer.local_steps,
                 "Each rank trains on its own, and every so many steps all take the mean of weights and moments (1: "
                 "gradients are summed in every step)")
      ->group("Training");
  app.add_option("--local-from", o.trainer.local_from, "Steps before --local-steps begins (post-local SGD)")
      ->group("Training");
  add_choice(
      app, "--comm", o.comm, libraries,
      "Library that sums gradients; auto: NCCL for GPUs, MPI for CPUs; mpi with GPUs: through pinned host memory");
  add_choice(app, "--hierarchical", o.hierarchical, kOnOff,
             "MPI over several hosts: the ranks of a host add up their gradients first, and share what the host sends; "
             "off: each rank sends for itself, also to those of its host");
  add_choice(app, "--symmetric", o.symmetric, symmetric,
             "NCCL symmetric memory, where possible: on one node, with NCCL_ALGO and NCCL_PROTO not set");
  add_choice(app, "--fused-sum", o.trainer.fused_sum, kOnOff,
             "Last bucket: sum over ranks and update in one kernel of ours, where --symmetric is on and possible");
  app.add_option(
      "--comm-ctas", o.comm_ctas,
      "Thread blocks of a collective, and multiprocessors that compute leaves to it (0: NCCL's choice, none)");
  add_choice(app, "--graph", o.trainer.graph, kOnOff, "Whole steps as CUDA graphs");
}

void check_local_steps(const Options& o) {
  const TrainerOptions& t = o.trainer;
  require(t.local_steps >= 1 && t.local_steps <= kMostSteps, "--local-steps", t.local_steps, "1 to 10^12");
  require(t.local_from >= 0 && t.local_from <= kMostSteps, "--local-from", t.local_from, "0 to 10^12");
  if (t.local_steps == 1) return;
  const auto refuse = [&](bool given, const char* flag, const char* why) {
    if (given) usage_error("--local-steps {} with {}: {}. Leave one of them out.", t.local_steps, flag, why);
  };
  refuse(t.zero, "--zero 1", "each rank has only a part of the master weights");
  refuse(t.virtual_ranks > 0, "--virtual-ranks", "replicas that differ give other bits on other numbers of ranks");
  refuse(t.overlap == OverlapMode::none, "--overlap none", "replicas would never be averaged");
  refuse(t.on_nonfinite == OnNonFinite::skip, "--on-nonfinite skip", "a step would be left out on some ranks only");
  refuse(t.gradient_type == DType::bf16, "--comm-dtype bf16", "weights are averaged, and not in bf16");
  const auto at_averages = [&](std::int64_t every, const char* flag) {
    if (every % t.local_steps == 0 && (every == 0 || t.local_from % t.local_steps == 0)) return;
    usage_error("{} {}: replicas are the same every {} steps after step {} only. Use multiples of --local-steps.", flag,
                every, t.local_steps, t.local_from);
  };
  at_averages(o.run.verify_every, "--verify-every");
  at_averages(o.checkpoint.every_steps, "--checkpoint-every");
}

void check_communication(const Options& o) {
  check_local_steps(o);
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
         "Steps between checkpoints, or a time such as 10m (s, m, h)")
      ->type_name("STEPS|TIME")
      ->default_str("10m");
  app.add_option("--keep", o.checkpoint.keep, "Complete checkpoints that are kept, the newest ones");
  add_choice(app, "--on-checkpoint-error", o.checkpoint.stop_on_error, reactions,
             "What to do where a checkpoint cannot be written, as on a full disk");
  app.add_option(
         "--resume", o.resume,
         "Go on from a checkpoint: auto, the newest undamaged one of --checkpoint, where there is one; or a path")
      ->type_name("auto|PATH");
  app.add_flag("--allow-change", o.allow_change, "Resume although flags that decide parameters have other values")
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
         "Longest wait for other ranks, three times as long until the first step has ended (seconds, or 90s, 10m, 2h; "
         "0: no limit)")
      ->type_name("TIME")
      ->default_str("10m");
  app.add_option("--flight", o.watchdog.flight,
                 "Folder for flight records where a wait was too long (one in the temporary folder)")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--fail-at", [&o](const std::string& text) { parse_fail_at(text, o.run); },
         "For tests: this rank throws before this step")
      ->type_name("RANK:STEP")
      ->configurable(false);
  app.add_option_function<std::string>(
         "--hang-at", [&o](const std::string& text) { parse_hang_at(text, o.hang); },
         "For tests: this rank hangs after so many steps, or where start-up, training, evaluation, calibration, trace "
         "or end begins")
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
  add_choice(app, "--baseline", o.run.baseline, kOnOff, "Measure one rank alone and the scaling efficiency");
  app.add_option("--min-seconds", o.run.min_seconds,
                 "Steps are timed for so long at least; those after training change nothing but the rate");
  app.add_option("--calibration-seconds", o.run.calibration_seconds,
                 "Time of that at most; it ends once the efficiency is known within a point (0: a quarter of the "
                 "training or of --min-seconds, 4 to 20 s)");
  app.add_option("--metrics", o.metrics, "File of JSON lines; the last one is the summary")->type_name("FILE");
  app.add_option("--tensorboard", o.tensorboard, "Folder for an event file of TensorBoard: a folder for each run")
      ->type_name("DIR");
  app.add_option_function<std::string>(
         "--peak-tflops", [&o](const std::string& text) { parse_peak(text, o); },
         "Of one device, for MFU; gemm: of large matrix products, measured before training (0: of the data sheet)")
      ->type_name(kRateOrGemm)
      ->default_str("0");
  app.add_option("--trace", o.run.trace, "Chrome trace (JSON, for Perfetto) of a few steps after training")
      ->type_name("FILE");
  add_choice(app, "--log-level", o.log_level, levels, "Log on standard error");
  app.add_option("--log-every", o.run.log_every,
                 "Steps between lines of the log, of --metrics and of --tensorboard (0: none)");
  app.add_option("--eval-every", o.run.eval_every, "Steps between evaluations within an epoch (0: none)");
  app.add_option("--eval-samples", o.run.eval_samples, "Samples of an evaluation at most (0: the whole test set)");
  app.add_option("--verify-every", o.run.verify_every,
                 "Steps between comparisons of the replicas, weights and optimizer state (0: parameters, at the end)");
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
