#include "launch/app/job/job.h"

#include <new>
#include <optional>

#include "launch/app/job/program.h"
#include "launch/app/plan/memory_advice.h"
#include "runtime/comm/agreed_signal.h"
#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
#include "runtime/train/run/training_run.h"

namespace ddptrain {

void StartupClock::mark(const char* phase) {
  const double now = seconds_since_process_start();
  phases_.emplace_back(phase, now - last_);
  last_ = now;
}

RunFacts facts_of(const World& world, const Options& options, const MeshShape& mesh) {
  return {.rank = world.rank(),
          .local_rank = world.local_rank(),
          .local_size = world.local_size(),
          .seed = options.trainer.seed,
          .mesh = mesh};
}

EndedBySignal ended_by(int signal, const Job& job, const std::string& when) {
  const bool resumable = !job.options().checkpoint.folder.empty();
  return {fmt::format("{}: ended {}", signal_name(signal), when), resumable ? kExitResumable : 128 + signal};
}

void work_or_end_job(const Job& job, const RunPlan& plan, const std::function<void()>& part) {
  run_or_end_job("ddptrain", job.world, [&] {
    std::string what;
    try {
      return part();
    } catch (const OutOfMemory& error) {
      what = error.what();
    } catch (const std::bad_alloc&) {
      what = "the host is out of memory";
    }
    throw OutOfMemory(out_of_memory_text(what, plan, job.world.rank(), job.options(), job.workload()));
  });
}

void heed_signals(const Job& job) {
  const std::optional<int> signal = agreed_end_signal(job.world);
  if (signal) throw ended_by(*signal, job, "before the first step; nothing was trained or saved");
}

}  // namespace ddptrain
