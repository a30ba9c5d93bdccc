#pragma once

#include "launch/app/flags/options.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/report.h"

/// A model of --init that is put to use and not trained: it takes its weights, their gradients' place and its
/// activations, and no optimizer state.

namespace ddptrain {

/// Evaluates it on the test samples (--eval-samples), which all ranks share; prints loss, accuracy and, of language
/// models, perplexity on rank 0, and adds a line "evaluated" to `metrics`, for classifiers also a line "confusion".
/// `metrics` is null but on rank 0, or where nothing is to be written. Collective.
void evaluate_model(const World& world, const Options& options, Workload& workload, Device& device,
                    Communicator& communicator, MetricsFile* metrics);

/// Prints what it writes, and adds each text as a line "generated" to `metrics`. UsageError with several ranks.
void generate_texts(const World& world, const Options& options, Workload& workload, Device& device,
                    Communicator& communicator, MetricsFile* metrics);

}  // namespace ddptrain
