#include "runtime/train/step/trainer_options.h"

#include <bit>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {

ArenaOptions arena_options(const TrainerOptions& options, const Model& model) {
  ArenaOptions result = arena_options(options, model.units());
  result.of_all_stages = model.parameters_of_all_stages();
  return result;
}

ArenaOptions arena_options(const TrainerOptions& options, const std::vector<Unit>& units) {
  const OptimizerRule& rule = rule_of(options.optimizer.kind);
  return {options.bucket_bytes,
          options.last_bucket_bytes,
          rule.slots,
          options.gradient_type,
          options.bf16_moments,
          options.has_masters,
          options.state_on_host,
          options.zero,
          options.virtual_ranks > 0 || rule.norms,
          options.fused_sum && options.virtual_ranks == 0 && !rule.matrices,
          units};
}

VirtualRanks virtual_ranks(const TrainerOptions& options, int rank, int world_size) {
  const std::int64_t all = options.virtual_ranks;
  if (all == 0) return {world_size, rank, 1};
  if (!std::has_single_bit(static_cast<std::uint64_t>(all))) {
    usage_error("--virtual-ranks {}: their gradients are added in pairs, and the sums in pairs. Use a power of two.",
                all);
  }
  if (all % world_size != 0) {
    usage_error(
        "--virtual-ranks {} on {}: the virtual ranks do not divide among the replicas. Start 1, 2, 4 or another "
        "power of two of replicas, up to {}. A replica is --pp x --tp ranks.",
        all, counted(world_size, "replica"), all);
  }
  const std::int64_t count = all / world_size;
  if (options.zero < Zero::gradients) return {all, rank * count, count, 1, true};
  if (options.grad_accum > 1) {
    usage_error(
        "--virtual-ranks {} with --zero {}: it sums gradients once per virtual rank. Use {} virtual ranks in place of "
        "--grad-accum {}.",
        all, static_cast<int>(options.zero), all * options.grad_accum, options.grad_accum);
  }
  return {all, rank, count, world_size, true};
}

std::int64_t dealt_ranks(const TrainerOptions& options, int replicas) {
  return options.virtual_ranks > 0 ? options.virtual_ranks : replicas;
}

DistributedSampler make_sampler(const TrainerOptions& options, const Dataset& data, int rank, int world_size) {
  const VirtualRanks ranks = virtual_ranks(options, rank, world_size);
  return {data.train_count(),          options.batch,
          options.grad_accum,          static_cast<int>(ranks.first),
          static_cast<int>(ranks.all), options.order_seed.value_or(options.seed)};
}

TrainerOptions capturable(TrainerOptions options, const Communicator& communicator, const Stages& stages) {
  const bool between_stages = stages.communicator == nullptr || stages.communicator->capturable();
  const bool within_layers = stages.tensor == nullptr || stages.tensor->capturable();
  options.graph = options.graph && communicator.capturable() && between_stages && within_layers;
  return options;
}

}  // namespace ddptrain
