#pragma once

#include <string>

#include "launch/app/flags/options.h"
#include "launch/app/job/job.h"
#include "launch/app/plan/run_plan.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/report.h"

/// What ddptrain does in place of training.

namespace ddptrain {

/// Rank 0 prints the content and state of the checkpoint at `path`, or of each checkpoint in a folder. UsageError if
/// there is none. Error if one is damaged or none is complete. A checkpoint that is being written counts as incomplete.
/// Collective.
void inspect_checkpoints(const World& world, const std::string& path);

/// Writes the weights of the checkpoint --resume to the folder of --export, in the format of the model's
/// Workload. Needs neither data nor flags of the model; UsageError if flags name another model or other sizes.
/// Collective.
void export_weights(const World& world, const CommandLine& command_line);

/// Rank 0 folds the entries of a file of --outer-record again, and prints the hash of the outer weights. UsageError if
/// it is no such file. Collective.
void replay_log(const World& world, const std::string& path);

/// Rank 0 makes model and arena of each stage on the meta device, and prints the description of the stage with the most
/// memory: as JSON, or its memory as a table. The job has options.ranks ranks; 0: as many as the world. It uses no GPU.
/// UsageError as in training. Collective.
void print_description(const World& world, CommandLine command_line);

/// Evaluates the model of --init, which is not trained, on the test samples (--eval-samples), which all ranks share: it
/// takes memory for weights, for their gradients and for activations, and none for optimizer state. Prints loss,
/// accuracy and, of language models, perplexity on rank 0, and adds a line "evaluated" to `metrics`, which is null but
/// on rank 0, or where nothing is to be written. Error, after that, if the loss is NaN or infinite. Collective.
void evaluate_model(const World& world, const RunPlan& plan, Workload& workload, Device& device,
                    Communicator& communicator, MetricsFile* metrics);

/// Continues the prompts of --prompt or --prompts with the model of --init or of the checkpoint --resume. The ranks are
/// a mesh of stages, replicas and parts, as in training; the replicas take the prompts in turn. Rank 0 prints the texts
/// in order, its own while they grow, then times and speeds, and adds a line "generated" to the file of --metrics. It
/// takes memory for weights, for their gradients and for activations of one text. UsageError for what cannot be
/// generated, Error if a logit is NaN or infinite. Collective.
void generate_text(Job job);

}  // namespace ddptrain
