#include "launch/app/tasks/training_start.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "launch/app/plan/memory_advice.h"
#include "launch/app/tasks/resume.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// Samples per rank and micro-step. Collective.
std::int64_t settled_batch(Job& job, const PlannedMachine& machine, const std::optional<Checkpoint>& resumed) {
  const Options& options = job.options();
  if (!options.auto_batch) return options.trainer.batch;
  if (!resumed) return largest_batch_that_fits(job.world, machine, options, job.workload());
  const std::int64_t batch = resumed->manifest.run.batch;
  spdlog::info("--batch auto: {} (as in the checkpoint)", batch);
  return batch;
}

void check_test_flags(const Options& options, int ranks) {
  const auto check = [ranks](const char* flag, int rank) {
    if (rank >= ranks) usage_error("{}: there is no rank {} among {}", flag, rank, ranks);
  };
  if (options.run.fail_at) check("--fail-at", options.run.fail_at->rank);
  if (options.hang.rank) check("--hang-at", *options.hang.rank);
}

void refuse_to_write_mixed_replicas(const RunPlan& plan) {
  if (!plan.writes_checkpoints && !plan.saves_model) return;
  const char* flag = plan.writes_checkpoints ? "--checkpoint" : "--save";
  usage_error(
      "--overlap none with {}: every replica trains on its own, and what is written would mix them. Leave {} out.",
      flag, flag);
}

/// What a plan says that a user may not have meant. On rank 0.
void warn_about(const RunPlan& plan, bool replicas_differ) {
  const auto steps = static_cast<std::uint64_t>(plan.length->steps);
  if (const std::uint64_t warmup = plan.trainer.optimizer.schedule.warmup_steps; warmup > steps) {
    spdlog::warn("--warmup {}: the run ends after {} steps, at {:.0f}% of the learning rate", warmup, steps,
                 100.0 * static_cast<double>(steps) / static_cast<double>(warmup));
  }
  if (plan.trainer.zero != Zero::nothing && plan.mesh.replicas == 1 && plan.trainer.virtual_ranks == 0) {
    spdlog::warn("--zero {}: with one replica it divides nothing. Start more ranks.",
                 static_cast<int>(plan.trainer.zero));
  }
  if (replicas_differ) {
    spdlog::warn("--overlap none: gradients are not reduced; every replica trains on its own. For measurements only.");
  }
}

void check_plan(const RunPlan& plan, const Job& job) {
  check_test_flags(job.options(), job.world.size());
  if (plan.length->dropped > 0) {
    spdlog::info("Each epoch skips {} random samples of {} (incomplete last step)", plan.length->dropped,
                 job.workload().data().train_count());
  }
  const bool replicas_differ = !plan.reduces_gradients() && plan.mesh.replicas > 1;
  if (replicas_differ) refuse_to_write_mixed_replicas(plan);
  if (job.world.rank() == 0) warn_about(plan, replicas_differ);
}

}  // namespace

TrainingStart::TrainingStart(Job& job, const PlannedMachine& machine, const std::string& data) {
  const World& world = job.world;
  const Options& options = job.options();
  if (!options.checkpoint.folder.empty()) folder.emplace(world, options.checkpoint.folder);
  resumed = checkpoint_to_resume(world, options);
  const std::int64_t batch = settled_batch(job, machine, resumed);
  world.agree([&] {
    plan.emplace(plan_run(options, job.workload(), machine, batch, &job.workload().data()));
    check_plan(*plan, job);
  });
  require_memory(world, *plan, options, job.workload());
  identity = identity_of(job.command_line, *plan, data);
  if (!resumed) return;
  world.agree([&] { check_resumable(*resumed, identity, job.command_line, *plan); });
  const RunIdentity& saved = resumed->manifest.run;
  identity.other_tensor = had_other_tensor(saved, identity);
  if (!identity.special_tokens.empty()) return;
  job.workload().take_special_tokens(saved.special_tokens);  // the run was started with --init
  identity.special_tokens = saved.special_tokens;
}

RunPlan plan_without_training(Job& job, const PlannedMachine& machine) {
  return plan_run(job.options(), job.workload(), machine, settled_batch(job, machine, std::nullopt));
}

}  // namespace ddptrain
