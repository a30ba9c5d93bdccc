#pragma once

#include "launch/app/flags/options.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/train/report/report.h"

namespace ddptrain {

/// Evaluates the model of --init, which is not trained, on the test samples (--eval-samples), which all ranks share: it
/// takes memory for weights, for their gradients and for activations, and none for optimizer state. Prints loss,
/// accuracy and, of language models, perplexity on rank 0, and adds a line "evaluated" to `metrics`, for classifiers
/// also a line "confusion". `metrics` is null but on rank 0, or where nothing is to be written. Collective.
void evaluate_model(const World& world, const Options& options, Workload& workload, Device& device,
                    Communicator& communicator, MetricsFile* metrics);

}  // namespace ddptrain
