#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/comm/world.h"
#include "runtime/core/tensor.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/train/dataset.h"
#include "runtime/train/step/distributed_sampler.h"
#include "runtime/train/step/gradient_reducer.h"
#include "runtime/train/step/optimizer.h"
#include "runtime/train/step/pipeline.h"
#include "runtime/train/step/store/parameter_arena.h"
#include "runtime/train/step/store/virtual_ranks.h"

namespace ddptrain {

struct TrainerOptions {
  std::int64_t batch = 512;  ///< Samples per rank and micro-step.
  std::int64_t grad_accum = 1;
  std::int64_t virtual_ranks = 0;  ///< Train as if on this many ranks (VirtualRanks). 0: the world size.
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> order_seed = {};  ///< Seed of the order of samples; empty: `seed`.
  OptimizerSettings optimizer;
  float clip_norm = 0.0f;  ///< 0: no clipping.
  OnNonFinite on_nonfinite = OnNonFinite::stop;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  std::size_t last_bucket_bytes = std::size_t{256} << 10;
  std::optional<DType> gradient_type = {};  ///< See ArenaOptions. bf16 with f32 weights: gradients are sent in bf16.
  bool bf16_moments = false;                ///< See ArenaOptions.
  bool has_masters = true;                  ///< See ArenaOptions.
  bool state_on_host = false;               ///< See ArenaOptions.
  Zero zero = Zero::nothing;
  OverlapMode overlap = OverlapMode::on;
  bool fused_sum = true;  ///< Fused paths may be chosen: see make_step_communication().
  bool graph = true;
};

/// UsageError if the ranks cannot train as options.virtual_ranks.
VirtualRanks virtual_ranks(const TrainerOptions& options, int rank, int world_size);

/// The ranks to which the samples of a step are dealt: virtual ranks, or without them the replicas.
std::int64_t dealt_ranks(const TrainerOptions& options, int replicas);

/// The arena's options for a model, or for one stage with these units.
ArenaOptions arena_options(const TrainerOptions& options, const Model& model);
ArenaOptions arena_options(const TrainerOptions& options, const std::vector<Unit>& units);

/// The sampler of the training samples. UsageError as the sampler's.
DistributedSampler make_sampler(const TrainerOptions& options, const Dataset& data, int rank, int world_size);

/// The options, without graphs if a communicator cannot be captured.
TrainerOptions capturable(TrainerOptions options, const Communicator& communicator, const Stages& stages);

}  // namespace ddptrain
