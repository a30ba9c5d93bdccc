#include "launch/app/flags/flag_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "launch/app/flags/options.h"
#include "models/registry.h"
#include "models/workload.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/text.h"
#include "runtime/outer/redis.h"

namespace ddptrain {
namespace {

constexpr bool kNotInFile = false;
constexpr std::int64_t kMostSteps = 1'000'000'000'000;  // counts beyond are mistakes, and sums of them overflow
constexpr Range kSteps = {"0 to 10^12", 0, kMostSteps};
constexpr Range kSeconds = {"0 to 10^6", 0, 1e6};
constexpr Range kPositive = {"a number above 0", kLeastAboveZero, std::numeric_limits<double>::max()};

Flags first_flags(Options& o) {
  return {{"--model", text(o.model, fmt::format("{}", fmt::join(model_names(), "|"))), "Model to train"},
          {"--precision",
           choice(o.precision, {{"auto", std::nullopt},
                                {"fp32", NumberFormat::fp32},
                                {"tf32", NumberFormat::tf32},
                                {"bf16", NumberFormat::bf16},
                                {"fp8", NumberFormat::fp8}}),
           "Number format of weights and compute. auto: bf16 with fp32 master weights on GPUs from compute "
           "capability 8.0, else fp32. fp8: bf16 with FP8 linear layers (gpt, llama)"}};
}

Flags device_flags(Options& o) {
  DeviceOptions& compute = o.compute;
  return {{"--device", choice(o.device, {"auto", "cpu", "cuda"}),
           "Where to compute; auto: GPUs if the machine has any, else CPUs", Effect::speed},
          {"--share-gpu", given(o.share_gpu),
           "Allow more ranks than GPUs (needs NCCL 2.30 or --comm mpi; launch/share-gpu makes it faster)",
           Effect::speed, "", kNotInFile},  // it belongs to a machine
          {"--threads", number(compute.threads, {"1 to 1024", 1, 1024}), "CPU threads per rank", Effect::speed},
          {"--fused", on_off(compute.fused), "Use fused kernels where they exist", Effect::speed, kExpertGroup},
          {"--tune", on_off(compute.tune),
           "Use the fastest implementations of GPU matrix multiplications and attention, by timing. The last bits may "
           "differ between runs without a common --tune-cache",
           Effect::speed},
          {"--tune-cache", text(o.tune_cache, "DIR|off"),
           "Folder that keeps the choices of --tune on for later runs; off: no folder (default ~/.cache/ddptrain)",
           Effect::speed, kExpertGroup}};
}

Flags training_flags(Options& o) {
  TrainerOptions& trainer = o.trainer;
  return {
      {"--epochs", number(o.run.epochs, {"1 to 1000000", 1, 1e6}), "Passes over the training set"},
      {"--steps", number(o.run.steps, {"1 to 10^12, or 0 to count by epochs", 0, kMostSteps}),
       "Number of steps, instead of --epochs (0: use --epochs)"},
      {"--batch", or_word("auto", o.auto_batch, number(trainer.batch, kOneOrMore)),
       "Samples per rank and micro-step; auto: the largest power of two that fits in memory"},
      {"--grad-accum", number(trainer.grad_accum, kOneOrMore), "Micro-steps per step; a step adds their gradients"},
      {"--virtual-ranks", number(trainer.virtual_ranks, {"a power of two up to 65536, or 0", 0, 65536}),
       "Train as if on this many ranks; the result is the same, bit for bit, on every number of ranks that divides it "
       "(0: off)"},
      {"--seed", number(trainer.seed, {"0 to 2^63 - 1", 0, 0x1p63}),
       "Seed of the initial parameters, the order of samples and dropout"}};
}

Flags optimizer_flags(Options& o) {
  Names<OptimizerKind> kinds;
  for (std::size_t i = 0; i < kOptimizerRules.size(); ++i) {
    kinds.emplace_back(kOptimizerRules[i].name, static_cast<OptimizerKind>(i));
  }
  OptimizerSettings& settings = o.trainer.optimizer;
  LrSchedule& schedule = settings.schedule;
  return {
      {"--optimizer", choice(settings.kind, kinds),
       "Update rule. muon: Muon for the matrices of hidden layers, adamw for all other parameters. lamb: adamw with a "
       "learning rate for each parameter, for large batches"},
      {"--lr", number(schedule.peak, kPositive), "Learning rate after warm-up, before --lr-scaling"},
      {"--momentum", number(settings.momentum, kBelowOne), "Momentum of sgd"},
      {"--muon-momentum", number(settings.muon_momentum, kBelowOne), "Momentum of muon (Nesterov), for matrices"},
      {"--beta1", number(settings.beta1, kBelowOne),
       "beta1 of adam, adamw, lamb and lion, and of muon for other parameters"},
      {"--beta2", number(settings.beta2, kBelowOne),
       "beta2 of adam, adamw, lamb and lion (the Lion paper uses 0.99), and of muon for other parameters"},
      {"--weight-decay", number(settings.weight_decay, kZeroOrMore), "Weight decay; biases and norms have none"},
      {"--moments", choice(o.trainer.bf16_moments, {{"fp32", false}, {"bf16", true}}),
       "Number format of the optimizer's moments. bf16 is rounded at random, with the value as the mean"},
      {"--master", choice(o.trainer.has_masters, {{"fp32", true}, {"off", false}}),
       "Master weights beside bf16 weights. off: none; the optimizer rounds weights to bf16 at random. With --moments "
       "bf16, Adam then takes 8 bytes per parameter in place of 16"},
      {"--offload", choice(o.trainer.state_on_host, {{"none", false}, {"optimizer", true}}),
       "What a run on GPUs keeps in pinned host memory. optimizer: master weights and moments; the update reads and "
       "writes them over PCIe",
       Effect::speed},
      {"--clip-norm", number(o.trainer.clip_norm, kZeroOrMore), "Largest norm of the whole gradient (0: no clipping)"},
      {"--on-nonfinite", choice(o.trainer.on_nonfinite, {{"stop", OnNonFinite::stop}, {"skip", OnNonFinite::skip}}),
       "If a loss or gradient is NaN or infinite: stop, or skip the step (10 in a row stop the run)"},
      {"--schedule",
       choice(schedule.kind, {{"constant", LrScheduleKind::constant},
                              {"cosine", LrScheduleKind::cosine},
                              {"linear", LrScheduleKind::linear}}),
       "Learning-rate schedule after warm-up"},
      {"--warmup", number(schedule.warmup_steps, kSteps), "Steps of linear warm-up"},
      {"--lr-scaling",
       choice(o.lr_scaling, {{"none", LrScaling::none}, {"linear", LrScaling::linear}, {"sqrt", LrScaling::sqrt}}),
       "Scale --lr by the samples per step divided by --lr-base-batch"},
      {"--lr-base-batch", number(o.lr_base_batch, kOneOrMore), "Samples per step that --lr is chosen for"}};
}

Flags communication_flags(Options& o) {
  TrainerOptions& trainer = o.trainer;
  return {
      {"--bucket-mb", or_size(number(o.bucket_mb, {"a size above 0", kLeastAboveZero, 1e6}), 1048576.0),
       "Largest gradient bucket, in MiB or with a unit, such as 512K", Effect::speed, kExpertGroup},
      {"--last-bucket-kb", or_size(number(o.last_bucket_kb, {"0 or more", 0, 1e9}), 1024.0),
       "Size of the last bucket, which nothing overlaps, in KiB or with a unit, such as 1M", Effect::speed,
       kExpertGroup},
      {"--overlap",
       choice(trainer.overlap, {{"on", OverlapMode::on},
                                {"backward", OverlapMode::backward},
                                {"off", OverlapMode::off},
                                {"none", OverlapMode::none}}),
       "When to reduce gradients. on: during backward and, with MPI on CPUs, the next forward. backward: during "
       "backward. off: after backward. none: never",
       Effect::speed},
      {"--zero",
       choice(trainer.zero, {{"0", Zero::nothing}, {"1", Zero::state}, {"2", Zero::gradients}, {"3", Zero::weights}}),
       "What to divide among the ranks (ZeRO). 1: master weights and moments. 2: also summed gradients. 3: also "
       "weights, which are gathered for each layer before it runs",
       Effect::speed},
      {"--pp", number(o.stages, {"1 to 1000", 1, 1000}),
       "Pipeline parallelism: stages into which each replica of the model is cut, a rank each (gpt, llama). The "
       "micro-steps of --grad-accum and the virtual ranks go through it one after the other",
       Effect::speed},
      {"--tp", number(o.tensor, {"1 to 1000", 1, 1000}),
       "Tensor parallelism: ranks among which each layer is split (gpt, llama): attention heads, feed-forward layers, "
       "vocabulary. Results differ by rounding for each value, even with --virtual-ranks",
       Effect::speed},
      {"--comm-dtype",
       choice(trainer.gradient_type, {{"auto", std::nullopt}, {"bf16", DType::bf16}, {"fp32", DType::f32}}),
       "Number format of gradients that are sent; auto: as --precision. bf16 with fp32 weights: MPI only, between "
       "hosts (on one host between ranks), added in fp32"},
      {"--comm",
       choice(o.comm, {{"auto", CommLibrary::automatic}, {"nccl", CommLibrary::nccl}, {"mpi", CommLibrary::mpi}}),
       "Library for all-reduce. auto: NCCL on GPUs, MPI on CPUs. mpi on GPUs: through pinned host memory",
       Effect::speed},
      {"--hierarchical", on_off(o.hierarchical),
       "MPI on several hosts: reduce gradients within each host first; off: each rank sends for itself", Effect::speed,
       kExpertGroup},
      {"--symmetric", choice(o.symmetric, {{"auto", true}, {"on", true}, {"off", false}}),
       "Use NCCL symmetric memory if possible (one node; NCCL_ALGO and NCCL_PROTO not set)", Effect::speed,
       kExpertGroup},
      {"--fused-sum", on_off(trainer.fused_sum),
       "Reduce the last bucket and update its weights in one kernel, if --symmetric is on and possible", Effect::speed,
       kExpertGroup},
      {"--comm-ctas", number(o.comm_ctas, {"0 to 32", 0, 32}),
       "Thread blocks (CTAs) per collective of NCCL; kernels that overlap with them, and the CNN's convolutions, leave "
       "that many SMs free (0: NCCL chooses, and compute uses all SMs)",
       Effect::speed, kExpertGroup},
      {"--graph", on_off(trainer.graph), "Run whole steps as CUDA graphs", Effect::speed, kExpertGroup}};
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
FlagValue steps_or_time(CheckpointOptions& options) {
  return {"STEPS|TIME", "10m", [&options](const std::string& text) -> std::string {
            const Amount amount = parse_amount(text).value_or(Amount{});
            const bool by_time = amount.seconds_of_unit > 0.0;
            const bool fits =
                amount.number <= static_cast<double>(kMostSteps) && amount.number >= (by_time ? 0.001 : 1.0);
            if (!fits || (!by_time && amount.number != std::floor(amount.number))) {
              return "a number of steps, such as 1000, or a time, such as 10m (s, m, h)";
            }
            options.every_steps = by_time ? 0 : static_cast<std::int64_t>(amount.number);
            options.every_seconds = amount.number * amount.seconds_of_unit;
            return {};
          }};
}

/// Seconds of "90", "90s", "10m" or "2h".
FlagValue time(double& seconds) {
  return {"TIME", "10m", [&seconds](const std::string& text) -> std::string {
            const auto amount = parse_amount(text);
            if (!amount || !(amount->number >= 0.0 && amount->number < 1e9)) {
              return "seconds, or a number with s, m or h";
            }
            seconds = amount->number * (amount->seconds_of_unit > 0.0 ? amount->seconds_of_unit : 1.0);
            return {};
          }};
}

Flags checkpoint_flags(Options& o) {
  CheckpointOptions& checkpoint = o.checkpoint;
  return {{"--checkpoint", text(checkpoint.folder, "DIR"), "Folder for checkpoints, the same for all hosts",
           Effect::output},
          {"--checkpoint-every", steps_or_time(checkpoint),
           "Steps between checkpoints, or a time such as 90s, 10m or 2h", Effect::output},
          {"--keep", number(checkpoint.keep, kOneOrMore), "Number of complete checkpoints to keep, the newest ones",
           Effect::output},
          {"--on-checkpoint-error", choice(checkpoint.stop_on_error, {{"stop", true}, {"continue", false}}),
           "If a checkpoint cannot be written (disk full): stop or continue the run", Effect::output},
          {"--resume", text(o.resume, "auto|PATH"),
           "Resume from this checkpoint; auto: from the newest undamaged checkpoint in --checkpoint, if one exists",
           Effect::output},
          {"--allow-change", given(o.allow_change),
           "Resume although flags that decide the parameters have other values", Effect::output, "", kNotInFile}};
}

/// A number or auto, which is the default.
FlagValue or_auto(bool& chosen, FlagValue number) {
  FlagValue value = or_word("auto", chosen, std::move(number));
  value.text = "auto";
  return value;
}

Flags group_flags(Options& o) {
  OuterOptions& outer = o.outer;
  OuterRule& rule = outer.rule;
  return {
      {"--outer", text(outer.address, "URL"),
       "Train as one of several groups, jobs of their own that share a log: redis://[USER@]HOST[:PORT]/NAME, or "
       "rediss:// for TLS. NAME is the run. The environment variables DDPTRAIN_OUTER_PASSWORD and, for TLS, "
       "DDPTRAIN_OUTER_CA have the password and the file of the certificate authority",
       Effect::output, "", kNotInFile},  // it belongs to a network
      {"--group", text(outer.group, "NAME"), "Name of this group, different from the other groups' (with --outer)"},
      {"--outer-steps", number(outer.steps, {"1 to 10^9", 1, 1e9}), "Steps between two exchanges with the log"},
      {"--outer-groups", number(rule.groups, {"0 to 1024", 0, OuterFold::kMostGroups}),
       "Groups of a synchronous round: each exchange waits for all of them, and every run gives the same bits. 0: "
       "asynchronous, no group waits for another"},
      {"--outer-optimizer",
       choice(o.outer_optimizer,
              {{"auto", std::nullopt}, {"nesterov", OuterOptimizer::nesterov}, {"sgd", OuterOptimizer::sgd}}),
       "Update rule of the outer weights. auto: nesterov with --outer-groups, else sgd"},
      {"--outer-lr", or_auto(o.auto_outer_lr, number(rule.learning_rate, kPositive)),
       "Learning rate of the outer weights; auto: 0.7 with nesterov, 1 with sgd"},
      {"--outer-momentum", number(rule.momentum, kBelowOne), "Momentum of --outer-optimizer nesterov"},
      {"--outer-dtype",
       choice(outer.codec, {{"int8", OuterCodec::int8},
                            {"int4", OuterCodec::int4},
                            {"bf16", OuterCodec::bf16},
                            {"fp32", OuterCodec::fp32}}),
       "Number format of differences in the log. int8 and int4 have a scale for each 64 values. The rounding error of "
       "a difference is added to the next one"},
      {"--outer-delay", number(outer.delay, {"0 to 10^9", 0, 1e9}),
       "Steps of training between sending a difference and taking the new outer weights, below --outer-steps. 0: "
       "training waits meanwhile"},
      {"--outer-fragments", number(outer.fragments, {"1 to 4096", 1, 4096}),
       "Parts of the weights that are sent at different steps"},
      {"--outer-max-age", number(rule.most_age, {"0 to 10^9", 0, 1e9}),
       "Without --outer-groups: a difference is skipped if the outer weights have advanced by more versions since its "
       "group took them"},
      {"--outer-snapshot-every", number(outer.snapshot_every, {"0 to 10^9", 0, 1e9}),
       "Versions of the outer weights between two snapshots of them in the log, from which groups begin that join "
       "late. Then entries that no group needs are removed from the log; in rounds, without snapshots, those that "
       "all groups' checkpoints contain. 0: none, the log keeps all entries",
       Effect::output},
      {"--outer-record", text(outer.record, "FILE"),
       "Write what this group reads from the log to a file, for --replay-log", Effect::output}};
}

/// What groups need of other flags.
void check_group(const Options& o) {
  const OuterOptions& outer = o.outer;
  if (outer.address.empty()) return;
  about("--outer", [&] { require_redis(parse_log_address(outer.address)); });
  if (outer.group.empty()) usage_error("--outer {}: name this group with --group NAME", outer.address);
  if (!is_group_name(outer.group)) {
    usage_error("--group '{}': give up to {} letters, digits, dots, dashes and underscores", printable(outer.group),
                kLongestGroupName);
  }
  if (outer.delay >= outer.steps) {
    usage_error(
        "--outer-delay {}: a difference must be back before the next one is sent. Give less than --outer-steps {}.",
        outer.delay, outer.steps);
  }
  if (!o.trainer.has_masters) {
    usage_error(
        "--outer with --master off: bf16 weights would lose most of what other groups have learned. Leave --master "
        "out.");
  }
  if (o.trainer.overlap == OverlapMode::none) {
    usage_error("--outer with --overlap none: the replicas of a group must agree. Use --overlap on.");
  }
}

/// A number of steps; auto: empty; off: 0.
FlagValue steps_or_auto(std::optional<std::int64_t>& steps) {
  std::int64_t number_of_steps = 0;
  FlagValue value = number(number_of_steps, kSteps);
  value.type = "INT|auto|off";
  value.text = value.word = "auto";
  value.number += ", \"auto\" or \"off\"";
  value.set = [&steps](std::string& text) -> std::string {
    steps.reset();
    if (text == "auto") return {};
    if (text == "off") text = "0";
    const std::string advice = number(steps.emplace(0), kSteps).set(text);
    return advice.empty() ? advice : advice + ", auto or off";
  };
  return value;
}

Flags output_flags(Options& o) {
  RunOptions& run = o.run;
  return {
      {"--baseline", on_off(run.baseline), "Measure the single-rank baseline and the scaling efficiency",
       Effect::output},
      {"--min-seconds", number(run.min_seconds, kSeconds),
       "Shortest time of measured steps, in seconds; extra steps after training do not change the parameters",
       Effect::output},
      {"--calibration-seconds", number(run.calibration_seconds, kSeconds),
       "Longest time of the baseline measurement, in seconds (0: a quarter of the training or of --min-seconds, 4 to "
       "20 s, and up to three times that while the interval is wide; 20 s if steps of GPUs take more than 10 ms). It "
       "ends before that if eight rounds know the efficiency within a point",
       Effect::output, kExpertGroup},
      {"--metrics", text(o.metrics, "FILE"), "Write metrics as JSON lines; the last line is the summary",
       Effect::output},
      {"--peak-tflops", number(o.peak_tflops, {"0 or more", 0, 1e6}),
       "Peak TFLOP/s of one device, for MFU (0: data sheet)", Effect::output},
      {"--trace", text(run.trace, "FILE"), "Write a Chrome trace (JSON, for Perfetto) of a few steps after training",
       Effect::output},
      {"--log-level", choice(o.log_level, {"trace", "debug", "info", "warn", "error", "off"}),
       "Log level on standard error", Effect::output},
      {"--log-every", steps_or_auto(run.log_every),
       "Steps between logged steps, whose values go to --metrics and to the progress line. auto: about 100 steps of "
       "the run are logged; 0 or off: none. A number writes a progress line for each of them",
       Effect::output},
      {"--eval-every", number(run.eval_every, kSteps), "Steps between evaluations within an epoch (0: none)",
       Effect::output},
      {"--eval-samples", number(run.eval_samples, kZeroOrMore),
       "Most test samples per evaluation (0: the whole test set)", Effect::output},
      {"--sample-every", number(run.sample_every, kSteps),
       "Steps between samples of text, which are also written after the last step (gpt, llama; 0: none): see "
       "--prompt, --max-tokens, --temperature",
       Effect::output},
      {"--verify-every", number(run.verify_every, kSteps),
       "Steps between comparisons of weights and optimizer state across ranks (0: parameters only, at the end)",
       Effect::output}};
}

FlagValue rank_and_step(std::optional<FailAt>& fail_at) {
  return {"RANK:STEP", "", [&fail_at](const std::string& text) {
            std::istringstream in(text);
            char colon = 0;
            FailAt at;
            const bool read = in >> at.rank >> colon >> at.step && colon == ':' && in.eof();
            if (!read || at.rank < 0 || at.step < 0) return "RANK:STEP, two numbers counted from 0";
            fail_at = at;
            return "";
          }};
}

FlagValue rank_and_phase(HangAt& hang) {
  return {"RANK:STEP|PHASE", "", [&hang](const std::string& text) -> std::string {
            std::istringstream in(text);
            char colon = 0;
            int rank = 0;
            if (!(in >> rank >> colon >> hang.phase) || colon != ':' || rank < 0) return "RANK:PHASE or RANK:STEP";
            hang.rank = rank;
            if (number(hang.steps, kSteps).set(hang.phase).empty()) {
              hang.phase.clear();
              return "";
            }
            static constexpr std::array kPhases = {"start-up", "training", "evaluation", "generation",
                                                   "baseline", "trace",    "end"};
            const bool known = std::find(kPhases.begin(), kPhases.end(), hang.phase) != kPhases.end();
            return known ? "" : fmt::format("one of these phases: {}", fmt::join(kPhases, ", "));
          }};
}

Flags failure_flags(Options& o) {
  return {{"--timeout", time(o.watchdog.timeout_seconds),
           "Longest wait for other ranks: seconds, or 90s, 10m, 2h (0: no limit); tripled until the first step ends",
           Effect::output},
          {"--flight", text(o.watchdog.flight, "DIR"),
           "Folder for flight records of a timeout (default: one in the temporary folder)", Effect::output},
          {"--fail-at", rank_and_step(o.run.fail_at), "For tests: this rank throws before this step", Effect::output,
           kExpertGroup, kNotInFile},
          {"--hang-at", rank_and_phase(o.hang),
           "For tests: this rank hangs after this many steps or in a phase: start-up, training, evaluation, "
           "generation, baseline, trace or end",
           Effect::output, kExpertGroup, kNotInFile}};
}

/// Muon needs a matrix as a whole on the rank that works on it, LAMB the norms of whole parameters.
void check_whole_parameters(const Options& o) {
  const OptimizerRule& rule = rule_of(o.trainer.optimizer.kind);
  if (o.tensor > 1 && rule.whole_parameters()) {
    usage_error("--optimizer {} with --tp {}: it needs {}, and --tp splits them. Use --pp or --zero 1.", rule.name,
                o.tensor, rule.matrices ? "whole matrices" : "norms of whole parameters");
  }
  if (o.trainer.zero >= Zero::gradients && rule.matrices) {
    usage_error("--optimizer {} with --zero {}: it needs whole gradients of matrices. Use --zero 0 or 1.", rule.name,
                static_cast<int>(o.trainer.zero));
  }
}

/// What a stage, or a part of the layers, cannot do alone.
void check_parts_of_model(const Options& o, const Workload& workload) {
  const std::string flag = o.stages > 1 ? fmt::format("--pp {}", o.stages) : fmt::format("--tp {}", o.tensor);
  if (!workload.supports_stages()) {
    usage_error("{}: model {} is one unit, which cannot be cut{}. Use --model gpt or llama, or leave {} out.", flag,
                o.model, o.tensor > 1 ? ", and its layers are not split" : "", flag.substr(0, 4));
  }
  if (o.precision == NumberFormat::fp8) {
    usage_error("--precision fp8 with {}: ranks that share a replica compute in bf16 at least. Use bf16.", flag);
  }
}

void check_samples(const Options& o, const Workload& workload) {
  if (!workload.continues_texts()) {
    usage_error("--sample-every {}: model {} has no texts. Use --model gpt or llama, or leave it out.",
                o.run.sample_every, o.model);
  }
  if (!o.generate.prompt.empty() && !o.generate.prompts.empty()) {
    usage_error("--sample-every: give --prompt TEXT or --prompts FILE, not both");
  }
}

}  // namespace

Flags flags_of(Options& options, const std::string& model, Workload& workload) {
  Flags all;
  const auto add = [&all](const std::string& group, const Flags& flags) {
    for (Flag flag : flags) {
      if (flag.group.empty()) flag.group = group;
      all.push_back(std::move(flag));
    }
  };
  add("Training", first_flags(options));
  add("Device", device_flags(options));
  add("Model " + model, workload.flags());
  add("Training", training_flags(options));
  add("Optimizer", optimizer_flags(options));
  add("Communication", communication_flags(options));
  add("Groups", group_flags(options));
  add("Checkpoints", checkpoint_flags(options));
  add("Measurement and output", output_flags(options));
  add("Failures", failure_flags(options));
  return all;
}

void check_flags(const Options& o, const Workload& workload) {
  if (o.precision == NumberFormat::fp8 && !workload.supports_fp8()) {
    usage_error("--precision fp8: model {} has no FP8 layers. Use bf16.", o.model);
  }
  if (o.stages > 1 || o.tensor > 1) check_parts_of_model(o, workload);
  if (o.share_gpu && o.device == "cpu") usage_error("--share-gpu with --device cpu: leave one of them out");
  if (o.resume == "auto" && o.checkpoint.folder.empty()) {
    usage_error("--resume auto: add --checkpoint DIR, or name the folder: --resume DIR");
  }
}

void check_training_flags(const Options& o, const Workload& workload) {
  check_flags(o, workload);
  check_group(o);
  if (o.run.sample_every > 0) check_samples(o, workload);
  check_whole_parameters(o);
  if (o.trainer.zero >= Zero::gradients && o.trainer.overlap >= OverlapMode::off) {
    usage_error(
        "--overlap {}: with --zero {}, gradients are sent during backward, because others take their memory. Use "
        "--overlap on, or --zero 0 or 1.",
        o.trainer.overlap == OverlapMode::off ? "off" : "none", static_cast<int>(o.trainer.zero));
  }
}

}  // namespace ddptrain
