#include "models/decoder/workspace.h"

#include <algorithm>

namespace ddptrain {

BlockLifetimes block_lifetimes(const Stage& stage, std::int64_t layer, Recompute recompute, bool is_split) {
  const PassSteps steps(stage.units());
  const std::int64_t unit = stage.unit_of_block(layer);
  const std::int64_t enter = is_split ? steps.forward(unit - 1) : steps.enter(unit);
  const std::int64_t forward = steps.forward(unit);
  const std::int64_t backward = steps.backward(unit);
  const std::int64_t end = layer == 0 ? steps.last() : backward;
  const bool restores = stage.restores(layer);
  BlockLifetimes lifetimes;
  lifetimes.kept = Lifetime(enter, end);
  lifetimes.exchanged = Lifetime(enter, forward).again(backward, end);
  lifetimes.input = layer == 0 ? Lifetime(steps.forward(0), end) : lifetimes.kept;  // the embedding writes it
  lifetimes.middle = lifetimes.normalised = lifetimes.activated = lifetimes.others = lifetimes.kept;
  if (!restores || recompute == Recompute::none) return lifetimes;
  lifetimes.activated = Lifetime(forward, forward).again(backward, end);
  if (recompute == Recompute::gelu) return lifetimes;
  lifetimes.normalised = Lifetime(enter, forward).again(backward, end);
  if (recompute == Recompute::selective) return lifetimes;
  lifetimes.others = Lifetime(enter, forward).again(backward, end);
  const std::int64_t read = is_split ? steps.forward(unit + 1) : steps.enter(unit + 1);
  lifetimes.middle = Lifetime(enter, read).again(backward, end);
  return lifetimes;
}

Lifetime Workspace::head_lifetime() const {
  const PassSteps steps(stage_.units());
  const std::int64_t unit = stage_.head_unit();
  return {options_.slice.count > 1 ? steps.forward(unit - 1) : steps.enter(unit),
          options_.overlaps ? steps.last() : steps.backward(stage_.head_unit())};
}

Lifetime Workspace::logits_lifetime() const {
  const PassSteps steps(stage_.units());
  const std::int64_t forward = steps.forward(stage_.head_unit());
  return {forward, options_.overlaps ? steps.last() : forward};
}

void Workspace::request(Activations& memory) {
  const PassSteps steps(stage_.units());
  const Lifetime always(0, steps.last());
  const Lifetime blocks(steps.backward(stage_.unit_of_block(stage_.last_block())), steps.last());
  const Lifetime block_0(steps.backward(stage_.unit_of_block(0)), steps.last());
  const std::int64_t width = config_.width;
  const std::int64_t slices = options_.slice.count;
  const AttentionKind attention = config_.attention().slice(slices);
  const MlpKind mlp = config_.mlp();

  memory.add("branch", std::max(width, attention.width()), always, branch_);
  branch_.shape.back() = width;
  // Buffers exchanged with other stages live for the whole pass: one exchange may send this pass's gradients and
  // receive the next pass's activations.
  const Lifetime backward(steps.backward(stage_.units() - 1), steps.last());
  memory.add("d_stream", width, stage_.is_whole() ? backward : always, d_stream_);
  memory.add("d_between", width, blocks, d_between_);
  if (stage_.has_embedding()) memory.add("d_embedded", width, block_0, d_embedded_);
  memory.add("d_qkv", attention.qkv_columns(), blocks, d_qkv_);
  memory.add("d_pre", mlp.pre_columns() / slices, blocks, d_pre_);
  if (mlp.is_gated()) memory.add("d_activated", mlp.hidden / slices, blocks, d_activated_);
  if (!stage_.has_embedding()) memory.add_rows("previous stream", width, always, previous_stream_);
  if (config_.tied_head || stage_.has_head()) {
    const Shape head{config_.vocabulary_rows(options_.slice).padded, width};
    const Lifetime from_head(stage_.is_whole() ? steps.forward(stage_.head_unit()) : 0, steps.last());
    memory.add("d_head", master_dtype(device_.precision()), head, from_head, d_head_);
  }
  if (!options_.fp8) return;
  memory.add("mlp d_branch fp8", DType::e5m2, width, blocks, mlp_branch_fp8_);
  memory.add("attention d_branch fp8", DType::e5m2, width, blocks, attention_branch_fp8_);
  memory.add("d_qkv fp8", DType::e5m2, attention.qkv_columns(), blocks, d_qkv_fp8_);
}

void Workspace::connect() {
  blocks_ = connected(options_.dropout ? d_between_ : d_stream_);
  block_0_ = connected(d_embedded_);
}

/// `of_attention` is the gradient of the branch of attention with dropout, and the gradient of its input without.
BlockGradients Workspace::connected(const Tensor& of_attention) const {
  BlockGradients g;
  if (options_.dropout) {
    g.mlp.d_output = g.mlp.d_input = g.attention.d_output = g.attention.d_input = d_stream_;
    g.mlp.d_branch = d_between_;
    g.attention.d_branch = of_attention;
  } else {
    g.mlp.d_output = d_stream_;
    g.mlp.d_input = g.attention.d_output = d_between_;
    g.attention.d_input = of_attention;
  }
  g.mlp.d_norm = g.attention.d_norm = branch_;
  g.mlp.d_hidden = d_pre_;
  g.mlp.d_activated = d_activated_;
  g.attention.d_hidden = d_qkv_;
  g.mlp.d_branch_fp8 = mlp_branch_fp8_;
  g.attention.d_branch_fp8 = attention_branch_fp8_;
  g.attention.d_hidden_fp8 = d_qkv_fp8_;
  return g;
}

void Workspace::fit(const BatchShape& shape, const Shape& rows) {
  for (Tensor* tensor : {&branch_, &d_stream_, &d_embedded_}) {
    if (*tensor) shape.fit(*tensor);
  }
  previous_stream_.shape = rows;
  blocks_.fit(shape);
  block_0_.fit(shape);
}

void Workspace::set_fp8(bool fp8) {
  for (BlockGradients* gradients : {&blocks_, &block_0_}) {
    gradients->mlp.d_hidden.dtype = fp8 ? DType::e5m2 : device_.dtype();
  }
}

}  // namespace ddptrain
