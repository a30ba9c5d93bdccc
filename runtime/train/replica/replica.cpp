#include "runtime/train/replica/replica.h"

#include <optional>
#include <utility>

#include "runtime/core/hash.h"
#include "runtime/train/step/step_order.h"

namespace ddptrain {
namespace {

VirtualRanks ranks_of(const TrainerOptions& options, ReplicaUse use, const Communicator& communicator) {
  if (use == ReplicaUse::training) return virtual_ranks(options, communicator.rank(), communicator.size());
  return {communicator.size(), communicator.rank(), 1};
}

ArenaOptions arena_of(TrainerOptions options, ReplicaUse use, const Model& model) {
  if (use == ReplicaUse::training) return arena_options(options, model);
  options.zero = Zero::nothing;
  options.virtual_ranks = 0;
  ArenaOptions arena = arena_options(options, model);
  arena.optimizer_slots = 0;
  return arena;
}

/// Models whose activations are needed at the same time.
std::int64_t models_of(const TrainerOptions& options, ReplicaUse use, const VirtualRanks& ranks, const Stages& stages) {
  if (use == ReplicaUse::evaluation) return 1;
  return passes_in_flight(stages.count(), stages.index(), ranks.count * options.grad_accum);
}

}  // namespace

Replica::Replica(const TrainerOptions& options, ReplicaUse use, std::unique_ptr<Model> model, Device& device,
                 Communicator& communicator, const Stages& stages)
    : pipeline_(stages, device),
      ranks_(ranks_of(options, use, communicator)),
      models_(with_siblings(std::move(model), models_of(options, use, ranks_, stages))),
      arena_(models_.front()->parameters(), arena_of(options, use, *models_.front()), device, communicator),
      state_(arena_, models_.front()->buffers(), ranks_.emulated ? std::optional(ranks_) : std::nullopt) {
  check_units(arena_.units(), arena_.specs().size());
}

void Replica::initialise(std::uint64_t seed, int rank) {
  for (const auto& model : models_) {
    model->bind({arena_.weights(), arena_.gradients(), state_.buffers(), stages().tensor});
  }
  for (std::int64_t i = 0; i < ranks_.count; ++i) state_.save_buffers(i);
  arena_.initialise(seed, rank);
}

void Replica::lend_weights(Model& model) const {
  model.bind({arena_.weights(), arena_.gradients(), {}, stages().tensor});
}

void Replica::restored() {
  buffers_used_ = false;
  state_.load_buffers(0);
  model().restored();
}

/// Until every virtual rank has used the buffers, the model's host state about them may differ between virtual ranks.
void Replica::load_buffers(std::int64_t i) {
  if (ranks_.count == 1) return;
  state_.load_buffers(i);
  if (!buffers_used_) model().restored();
}

void Replica::save_buffers(std::int64_t i) { state_.save_buffers(i); }

void Replica::rewind_buffers() {
  state_.load_buffers(0);
  buffers_used_ = true;
}

std::string Replica::parameter_hash() const {
  Hash128 hash;
  for (int stage = stages().count() - 1; stage >= 0; --stage) {
    if (stage == stages().index()) state_.add_parameters(hash, stages().tensor);
    if (stages().count() == 1) break;
    std::string so_far = hash.state();
    stages().ranks->broadcast(so_far.data(), so_far.size(), stage);
    hash.go_on_from(so_far);
  }
  return hash.hex();
}

MetricSums Replica::from_last_stage(MetricSums sums) const {
  if (stages().count() > 1) stages().ranks->broadcast(&sums, sizeof(sums), stages().count() - 1);
  return sums;
}

}  // namespace ddptrain
