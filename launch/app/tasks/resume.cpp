#include "launch/app/tasks/resume.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <set>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

std::string text_of(const RunIdentity& run) {
  const std::int64_t shards = run.samples_per_step / (run.batch * run.grad_accum);
  const char* shard = shards == run.mesh.ranks() ? "rank" : shards == run.mesh.replicas ? "replica" : "virtual rank";
  return fmt::format("{} samples (--batch {} --grad-accum {} on {})", run.samples_per_step, run.batch, run.grad_accum,
                     counted(shards, shard));
}

/// What gives the samples per step of the checkpoint.
std::string advice_for(const RunIdentity& saved, const RunIdentity& run) {
  const std::int64_t per_accumulation = run.samples_per_step / run.grad_accum;
  const std::int64_t per_batch = run.samples_per_step / run.batch;
  if (saved.samples_per_step % per_accumulation == 0) {
    return fmt::format("for example --grad-accum {}", saved.samples_per_step / per_accumulation);
  }
  if (saved.samples_per_step % per_batch == 0) {
    return fmt::format("for example --batch {}", saved.samples_per_step / per_batch);
  }
  return "change --batch, --grad-accum, or the number of replicas (ranks / (--pp x --tp))";
}

void check_model(const Checkpoint& checkpoint, const RunIdentity& run) {
  const RunIdentity& saved = checkpoint.manifest.run;
  const std::string path = checkpoint.path.string();
  require_model(saved, run.model, path);
  const auto size_of = [](const RunIdentity& of, const std::string& name) {
    const auto size = of.sizes.find(name);
    return size == of.sizes.end() ? "none" : std::to_string(size->second);
  };
  for (const RunIdentity* either : {&saved, &run}) {  // a model may leave out a size that has its usual value
    for (const auto& [name, size] : either->sizes) {
      const std::string before = size_of(saved, name), now = size_of(run, name);
      if (before == now) continue;
      usage_error(
          "--resume {}: its model has {} {}, and this run's {}. Give the sizes of the checkpoint, or the --init with "
          "which it began.",
          path, name, before, now);
    }
  }
  if (saved.precision != run.precision) {
    usage_error("--resume {}: it was trained in {}, and this run computes in {}. Give --precision {}.", path,
                saved.precision, run.precision, saved.precision);
  }
}

/// Rounding what the checkpoint has in fp32 would be no continuation. The other way is exact.
void check_no_rounding(const Checkpoint& checkpoint, const CommandLine& command_line) {
  const auto before = [&](const char* flag) {
    const auto found = checkpoint.manifest.run.flags.find(flag);
    return found == checkpoint.manifest.run.flags.end() ? "\"fp32\"" : found->second;  // before there was the flag
  };
  const TrainerOptions& now = command_line.options.trainer;
  const auto refuse = [&](const char* what, const char* flag) {
    usage_error("--resume {}: its {} are fp32, and would have to be rounded. Give {} fp32.", checkpoint.path.string(),
                what, flag);
  };
  if (now.bf16_moments && before("--moments") == "\"fp32\"") refuse("moments", "--moments");
  if (!now.has_masters && before("--master") == "\"fp32\"") refuse("master weights", "--master");
}

/// The state of one optimizer may have another number of arrays than the state of the other. --allow-change does not
/// help then.
void check_optimizer(const Checkpoint& checkpoint, const CommandLine& command_line) {
  const auto saved = checkpoint.manifest.run.flags.find("--optimizer");
  if (saved == checkpoint.manifest.run.flags.end()) return;
  const OptimizerRule& now = rule_of(command_line.options.trainer.optimizer.kind);
  const std::string path = checkpoint.path.string();
  for (const OptimizerRule& before : kOptimizerRules) {
    if (saved->second != fmt::format("\"{}\"", before.name) || before.slots == now.slots) continue;
    usage_error(
        "--resume {}: it has the state of --optimizer {}, which --optimizer {} cannot use. To continue it, give "
        "--optimizer {}. To begin a run with its weights, write them with --resume {} --export DIR, then use --init "
        "DIR.",
        path, before.name, now.name, before.name, path);
  }
}

/// A run that has trained with groups goes on with them, and only such a run.
void check_groups(const Checkpoint& checkpoint, const Options& options) {
  const bool had_groups = std::ranges::any_of(
      checkpoint.manifest.arrays, [](const ArrayInfo& array) { return array.name.starts_with(kOuterArrays); });
  const std::string path = checkpoint.path.string();
  if (had_groups && options.outer.address.empty()) {
    usage_error("--resume {}: it is of a group that shares a log: add --outer URL and --group NAME of that run", path);
  }
  if (!had_groups && !options.outer.address.empty()) {
    usage_error(
        "--resume {}: it is of no group that shares a log. To begin a run of groups with its weights, write them with "
        "--resume PATH --export DIR, then use --init DIR.",
        path);
  }
}

void check_samples(const Checkpoint& checkpoint, const RunIdentity& run) {
  const RunIdentity& saved = checkpoint.manifest.run;
  const std::string path = checkpoint.path.string();
  if (saved.samples_per_step != run.samples_per_step) {
    usage_error("--resume {}: {} per step are needed, {} are given: {}", path, text_of(saved), text_of(run),
                advice_for(saved, run));
  }
  if (saved.steps_per_epoch != run.steps_per_epoch) {
    usage_error(
        "--resume {}: its epoch has {} steps, and this run's {}: the data has another number of samples. Give the "
        "--data of the checkpoint, and for texts its --val-fraction.",
        path, saved.steps_per_epoch, run.steps_per_epoch);
  }
}

/// "--lr 0.1 (checkpoint: 0.2)" of every flag with this effect.
std::vector<std::string> changed_flags(const RunIdentity& saved, const CommandLine& command_line, Effect effect) {
  // Compared by what they mean, or without effect on what follows.
  std::set<std::string> others = {"model", "precision", "data", "batch", "grad-accum", "init"};
  const bool constant = command_line.options.trainer.optimizer.schedule.kind == LrScheduleKind::constant;
  if (constant) others.insert({"steps", "epochs"});
  std::vector<std::string> changes;
  for (const Setting& now : command_line.settings) {
    const auto before = saved.flags.find("--" + now.name);
    if (now.effect != effect || others.count(now.name) > 0 || before == saved.flags.end()) continue;
    if (before->second == now.value) continue;
    changes.push_back(fmt::format("--{} {} (checkpoint: {})", now.name, now.value, before->second));
  }
  return changes;
}

/// A run that does not continue the newest checkpoint of its folder would remove that checkpoint later.
void require_no_other_run(const std::string& folder, const std::optional<Checkpoint>& found) {
  std::int64_t newest = -1;
  for (const auto& [step, path] : checkpoints_in(folder)) {
    if (has_manifest(path)) newest = step;
  }
  std::error_code error;
  const bool continues = found && std::filesystem::equivalent(found->path / "..", folder, error) &&
                         newest <= found->manifest.progress.step;
  if (newest < 0 || continues) return;
  usage_error(
      "--checkpoint {}: it holds step {} of an earlier run. Add --resume auto to continue it, or name an empty folder.",
      folder, newest);
}

}  // namespace

RunIdentity identity_of(const CommandLine& command_line, const RunPlan& plan, const std::string& data) {
  RunIdentity run;
  run.mesh = plan.mesh;
  run.model = plan.model;
  run.sizes = command_line.workload->sizes();
  run.special_tokens = command_line.workload->special_tokens();
  run.data = data;
  run.precision = name_of(plan.format);
  run.seed = plan.trainer.seed;
  run.batch = plan.trainer.batch;
  run.grad_accum = plan.trainer.grad_accum;
  run.samples_per_step = plan.length->samples_per_step;
  run.steps_per_epoch = plan.length->steps_per_epoch;
  for (const Setting& setting : command_line.settings) run.flags["--" + setting.name] = setting.value;
  run.versions = {{"ddptrain", DDPTRAIN_VERSION},
                  {"mpi", mpi_version()},
                  {"cuda", cuda_version()},
                  {"cudnn", cudnn_version()},
                  {"nccl", nccl_version()}};
  std::erase_if(run.versions, [](const auto& version) { return version.second.empty(); });
  return run;
}

std::string named_checkpoint(const Options& options) {
  return options.resume == "auto" ? options.checkpoint.folder : options.resume;
}

void require_model(const RunIdentity& saved, const std::string& model, const std::string& path) {
  if (saved.model == model) return;
  usage_error("--resume {}: it is of model {}, and this is --model {}. Give --model {}.", path, saved.model, model,
              saved.model);
}

void check_sequence(const CommandLine& command_line, const std::map<std::string, std::int64_t>& sizes) {
  const std::optional<std::int64_t>& given = command_line.given_sequence;
  if (!given || *given == sizes.at("sequence")) return;
  usage_error("--seq {}: the model has {}. Leave --seq out: the model decides it.", *given, sizes.at("sequence"));
}

std::optional<Checkpoint> checkpoint_to_resume(const World& world, const Options& options) {
  const std::string& folder = options.checkpoint.folder;
  std::optional<Checkpoint> found;
  if (!options.resume.empty()) found = find_checkpoint(world, named_checkpoint(options));
  world.agree([&] {
    if (!found && !options.resume.empty() && options.resume != "auto") {
      usage_error("--resume {}: there is no complete and undamaged checkpoint", options.resume);
    }
    if (world.rank() != 0 || folder.empty()) return;
    if (has_manifest(folder)) usage_error("--checkpoint {}: it is a checkpoint itself: give the folder above", folder);
    if (options.resume != "auto") require_no_other_run(folder, found);
  });
  if (!found && options.resume == "auto" && world.rank() == 0) {
    spdlog::info("--resume auto: no checkpoint in {} to resume from; training starts at step 0", folder);
  }
  return found;
}

void check_resumable(const Checkpoint& checkpoint, const RunIdentity& run, const CommandLine& command_line,
                     const RunPlan& plan) {
  const RunIdentity& saved = checkpoint.manifest.run;
  const std::string path = checkpoint.path.string();
  check_model(checkpoint, run);
  check_groups(checkpoint, command_line.options);
  check_optimizer(checkpoint, command_line);
  check_no_rounding(checkpoint, command_line);
  check_samples(checkpoint, run);
  const std::int64_t steps = plan.length->steps;
  if (steps < checkpoint.manifest.progress.step) {
    usage_error("--resume {}: it has {} steps behind it, and this run has {} in all. Give more --steps or --epochs.",
                path, checkpoint.manifest.progress.step, steps);
  }
  auto changes = changed_flags(saved, command_line, Effect::parameters);
  if (saved.data != run.data) changes.push_back(fmt::format("--data {} (checkpoint: {})", run.data, saved.data));
  const std::string text =
      fmt::format("--resume {}: other values than in the checkpoint: {}", path, fmt::join(changes, "; "));
  if (!changes.empty() && !command_line.options.allow_change) {
    usage_error("{}. Give the values of the checkpoint, or --allow-change to resume with others.", text);
  }
  if (!changes.empty()) spdlog::info("{}", text);
  const auto of_speed = changed_flags(saved, command_line, Effect::speed);
  if (!of_speed.empty()) {
    spdlog::info("--resume {}: flags that change the speed or the rounding: {}", path, fmt::join(of_speed, "; "));
  }
}

}  // namespace ddptrain
