#include "models/decoder/decoder.h"

#include "runtime/core/error.h"

// The passes of a decoder, from top to bottom. A block ends with a branch that is still to be added to the residual
// stream: the norm of the next unit does so, and enter() goes from one unit to the next.

namespace ddptrain {

// --- forward ------------------------------------------------------------------------------------------------------

void Decoder::forward(std::size_t unit) {
  if (stage_.is_embedding(unit)) {
    forward_embedding();
  } else if (stage_.is_head(unit)) {
    forward_head();
  } else {
    forward_block(stage_.block_of_unit(unit));
  }
}

void Decoder::forward_embedding() {
  const Dropout dropout = this->dropout(kEmbeddingSite);
  embedding_.forward(batch_, dropout, block(0).norm().chunks(), workspace_.branch(), block(0).norm().input);
}

void Decoder::forward_block(std::int64_t layer) {
  const Span span = this->span(block_name(layer) + " forward");
  block(layer).set_dropout(block_dropout(layer, 0), block_dropout(layer, 1));
  enter(layer, block(layer).norm());
  block(layer).forward(workspace_.branch());
  if (layer == stage_.last_block() && !stage_.has_head()) block(layer).norm().sum_branch(workspace_.branch());
}

/// Logits, loss and, if a backward pass follows, the gradient of the final norm's output, in `branch`.
void Decoder::forward_head() {
  enter(config_.layers, final_norm_);
  if (longest_text() > 0) return;  // next_logits() computes a row
  const Tensor d_weight = overlap_.overlaps() ? Tensor{} : workspace_.d_head();
  head_.forward(batch_, final_norm_.output, micro_batch_.gradient_scale, micro_batch_.sums, workspace_.branch(),
                d_weight);
  if (!micro_batch_.training) fp8_.end_evaluation();
}

/// Goes from the end of the previous unit to the output of `norm`, the first norm of block `layer` or of the head.
void Decoder::enter(std::int64_t layer, Norm& norm) {
  if (layer > stage_.first_block()) {
    block(layer - 1).mlp().add(workspace_.branch(), norm);
  } else if (layer > 0) {
    norm.forward(workspace_.previous_stream(), workspace_.branch(), block_dropout(layer - 1, 1), true);
  } else {
    norm.forward();
  }
}

// --- backward -----------------------------------------------------------------------------------------------------

void Decoder::backward(std::size_t unit, bool accumulate, const Ready& ready) {
  if (stage_.is_embedding(unit)) {
    backward_embedding(accumulate, ready);
  } else if (stage_.is_head(unit)) {
    backward_head(accumulate, ready);
  } else {
    backward_block(stage_.block_of_unit(unit), accumulate, ready);
  }
}

void Decoder::backward_head(bool accumulate, const Ready& ready) {
  const Tensor dbias = block(stage_.last_block()).mlp().dbias_from_next();
  overlap_.start([this] { head_.weight_gradient_of_one_piece(batch_, final_norm_.output, workspace_.d_head()); });
  if (!config_.tied_head) {
    overlap_.wait();
    head_.add_weight_gradient(workspace_.d_head(), own_head_gradient_, accumulate);
  }
  final_norm_.backward(workspace_.branch(), Tensor{}, workspace_.d_stream(), dbias, accumulate);
  report(parameters_.head, ready);
}

void Decoder::backward_block(std::int64_t layer, bool accumulate, const Ready& ready) {
  const Span span = this->span(block_name(layer) + " backward");
  if (layer == stage_.last_block() && !stage_.has_head()) take_next_dbias();
  if (layer == 0) {
    backward_block_0(accumulate);
    return;
  }
  block(layer).backward(workspace_.gradients(layer), workspace_.branch(), previous_dbias(layer), accumulate, ready);
  if (layer == stage_.first_block()) overlap_.wait();  // the output layer's gradient goes to the previous stage
}

/// Without the weight gradients, unless they overlap with later work. They come with the embeddings' gradients.
void Decoder::backward_block_0(bool accumulate) {
  const BlockGradients& g = workspace_.gradients(0);
  block(0).backward_mlp_data(g, workspace_.branch(), accumulate);
  overlap_.start([this, &g, accumulate] { block(0).backward_mlp_weights(g, accumulate, overlap_.keep_ready()); });
  block(0).backward_attention_data(g, accumulate);
}

/// Also computes the weight gradients of block 0. They come after the embeddings' gradients, so that they overlap with
/// the all-reduce of the embeddings, the largest of all. Small batches compute both at the same time.
void Decoder::backward_embedding(bool accumulate, const Ready& ready) {
  const BlockGradients& g = workspace_.gradients(0);
  overlap_.wait();  // the embedding's gradient begins with the output layer's
  overlap_.start([this, &g, accumulate] { block(0).backward_attention_weights(g, accumulate, overlap_.keep_ready()); });
  embedding_gradient(accumulate, ready);
  if (overlap_.overlaps()) {
    overlap_.wait();
    overlap_.report(ready);
  } else {
    const Span span = this->span(block_name(0) + " weight gradients");
    block(0).backward_mlp_weights(g, accumulate, ready);
    block(0).backward_attention_weights(g, accumulate, ready);
  }
  fp8_.end_backward();
}

void Decoder::embedding_gradient(bool accumulate, const Ready& ready) {
  const Span span = this->span("embedding backward");
  const Tensor d_head = config_.tied_head ? workspace_.d_head() : Tensor{};
  embedding_.backward(batch_, dropout(kEmbeddingSite), workspace_.d_embedded(), d_head, accumulate);
  report(parameters_.embedding, ready);
}

// --- what the passes use ------------------------------------------------------------------------------------------

void Decoder::begin(const MicroBatch& batch) {
  micro_batch_ = batch;
  const ResidentTokens& text = shared_->text;
  batch_ = {batch.slice, batch.training ? text.train : text.validation};
  DDP_CHECK(batch_.count > 0 && batch_.count <= options_.max_batch, "decoder: a batch of {}, at most {} fit",
            batch_.count, options_.max_batch);
  const std::int64_t sequence = batch_.source.sequence;
  DDP_CHECK(sequence > 0 && sequence <= config_.sequence, "decoder: windows of {} tokens, there are {} positions",
            sequence, config_.sequence);
  split_vocabulary();
  fit({batch_.count, sequence});
}

void Decoder::report(const DecoderParameters::Range& range, const Ready& ready) const {
  for (std::size_t parameter = range.first; parameter < range.end(); ++parameter) ready(parameter);
}

Dropout Decoder::dropout(std::uint32_t site) const {
  const float rate = micro_batch_.training ? options_.dropout : 0.0f;
  return {rate, options_.seed, site, batch_.order.first, batch_.step};
}
Dropout Decoder::block_dropout(std::int64_t layer, std::uint32_t half) const {
  return dropout(kEmbeddingSite + 1 + 2 * static_cast<std::uint32_t>(layer) + half);
}

}  // namespace ddptrain
