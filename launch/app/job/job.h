#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "launch/app/flags/options.h"
#include "launch/app/job/early_start.h"
#include "launch/app/plan/prompts.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/comm/mesh.h"
#include "runtime/comm/world.h"
#include "runtime/core/process/signal_requests.h"

namespace ddptrain {

/// Where the time before the first step goes.
class StartupClock {
 public:
  /// Ends the phase that began with the last mark, or with the process.
  void mark(const char* phase);
  const std::vector<std::pair<std::string, double>>& phases() const { return phases_; }

 private:
  double last_ = 0.0;
  std::vector<std::pair<std::string, double>> phases_;
};

/// What a task on a device begins with. RankDevice is made from it, then TrainingStart, which contains the RunPlan.
struct Job {
  const World& world;
  CommandLine command_line;
  EarlyStart& early;
  Mesh mesh;
  StartupClock clock = {};
  std::vector<TokenIds> prompts = {};  ///< Of --generate and --sample-every.

  Task task() const { return command_line.task; }
  const Options& options() const { return command_line.options; }
  Workload& workload() const { return *command_line.workload; }
  bool takes_samples() const { return task() == Task::train && options().run.sample_every > 0; }
};

/// For Workload::open() on this rank.
RunFacts facts_of(const World& world, const Options& options, const MeshShape& mesh);

/// How a signal ends a job of which nothing is lost. `when`: "after the last step".
EndedBySignal ended_by(int signal, const Job& job, const std::string& when);

/// As run_or_end_job(). If memory runs out, the error also has the memory of a rank and flags that save memory.
void work_or_end_job(const Job& job, const RunPlan& plan, const std::function<void()>& part);

/// Between the phases of start-up. Throws EndedBySignal on all ranks if a signal asks one of them for the end.
/// Collective.
void heed_signals(const Job& job);

}  // namespace ddptrain
