#include "runtime/train/step/pipeline.h"

#include "runtime/core/clocked.h"

namespace ddptrain {
namespace {

void add(std::vector<Message>& messages, const std::vector<Tensor>& tensors, int rank) {
  for (const Tensor& tensor : tensors) {
    if (tensor) messages.push_back({tensor, rank});
  }
}

void add_activations(std::vector<Message>& messages, const StageBoundary& boundary, std::int64_t pass, int rank) {
  if (pass == 0) add(messages, {boundary.tied_weight}, rank);
  add(messages, boundary.activations, rank);
}

void add_gradients(std::vector<Message>& messages, const StageBoundary& boundary, int rank) {
  add(messages, boundary.gradients, rank);
  add(messages, {boundary.tied_gradient}, rank);
}

}  // namespace

StageShare share_of(const Stages& stages, std::int64_t mine) {
  if (stages.count() == 1) return {0, mine};
  StageShare share;
  const std::vector<std::int64_t> counts = stages.ranks->all_gather(std::vector{mine});
  for (int stage = 0; stage < stages.count(); ++stage) {
    const std::int64_t count = counts[static_cast<std::size_t>(stage)];
    share.all += count;
    if (stage > stages.index()) share.before += count;
  }
  return share;
}

void Pipeline::exchange(const Exchange& messages, const ModelOf& model_of) {
  const int previous = stages_.index() - 1;
  const int next = stages_.index() + 1;
  std::vector<Message> sends;
  std::vector<Message> receives;
  if (const auto pass = messages.activations_out) add_activations(sends, model_of(*pass).next_boundary(), *pass, next);
  if (const auto pass = messages.gradients_out) add_gradients(sends, model_of(*pass).previous_boundary(), previous);
  if (const auto pass = messages.activations_in)
    add_activations(receives, model_of(*pass).previous_boundary(), *pass, previous);
  if (const auto pass = messages.gradients_in) add_gradients(receives, model_of(*pass).next_boundary(), next);
  send_to_stages(sends, receives);
}

void Pipeline::send_to_stages(const std::vector<Message>& sends, const std::vector<Message>& receives) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "exchange with stages");
  const Clocked clocked(seconds_waited_);
  device_.in_communication_stream(
      [&](Stream stream) { stages_.communicator->wait(stages_.communicator->exchange(sends, receives, stream)); });
}

void Pipeline::sum_over_replica(const Tensor& squares) {
  if (stages_.tensor != nullptr) stages_.tensor->run({TensorGroup::sum(squares)});
  if (stages_.count() == 1) return;
  const Clocked clocked(seconds_waited_);
  device_.in_communication_stream(
      [&](Stream stream) { stages_.communicator->wait(stages_.communicator->all_reduce_sum(squares, stream)); });
}

std::vector<std::unique_ptr<Model>> with_siblings(std::unique_ptr<Model> model, std::int64_t count) {
  std::vector<std::unique_ptr<Model>> models;
  models.push_back(std::move(model));
  while (std::ssize(models) < count) models.push_back(models.front()->sibling());
  return models;
}

}  // namespace ddptrain
