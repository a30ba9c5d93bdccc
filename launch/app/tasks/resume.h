#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "launch/app/flags/options.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/comm/world.h"
#include "runtime/train/checkpoint/checkpoint.h"

namespace ddptrain {

/// The identity of training with this command line. `data` is the result of require_same_data().
RunIdentity identity_of(const CommandLine& command_line, const RunPlan& plan, const std::string& data);

/// What --resume names: a checkpoint or a folder of some; auto: the folder of --checkpoint.
std::string named_checkpoint(const Options& options);

/// UsageError, naming `path`, if a checkpoint of `saved` is of another model than `model`.
void require_model(const RunIdentity& saved, const std::string& model, const std::string& path);
/// UsageError if CommandLine::given_sequence differs from the sequence of a model with these sizes.
void check_sequence(const CommandLine& command_line, const std::map<std::string, std::int64_t>& sizes);

/// The checkpoint that --resume names. Nothing without --resume, or if auto finds none. All ranks throw the same
/// UsageError if --checkpoint and --resume contradict each other, or if no checkpoint can be used. Collective.
std::optional<Checkpoint> checkpoint_to_resume(const World& world, const Options& options);

/// UsageError if `run` cannot continue from the checkpoint, or if flags that decide parameters differ and
/// --allow-change is not given. The message names every flag that differs.
void check_resumable(const Checkpoint& checkpoint, const RunIdentity& run, const CommandLine& command_line,
                     const RunPlan& plan);

}  // namespace ddptrain
