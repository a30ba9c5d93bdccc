#include <algorithm>

#include "models/decoder/decoder.h"
#include "runtime/core/error.h"

// What a decoder does to continue texts: see TextModel. Attention has an operation for it; all else runs as in
// training.

namespace ddptrain {

/// Memory of the keys and values of a block.
void Decoder::request_cache(std::int64_t layer) {
  const Lifetime always(0, PassSteps(stage_.units()).last());
  block(layer).request_cache(memory_, block_name(layer), memory_.sequence(), always);
}

TextPass::TextPass(Device& device, std::int64_t tokens, std::int64_t vocabulary) {
  const std::size_t bytes = sizeof(std::int64_t) + static_cast<std::size_t>(tokens) * sizeof(std::uint32_t);
  host = device.allocate_pinned(bytes);
  input = device.allocate(bytes);
  const TokenSegmentView view{static_cast<char*>(input.data()) + sizeof(std::int64_t), 0};
  segment = device.allocate(sizeof(view));
  device.copy_to_device(segment.data(), &view, sizeof(view));
  likeliest = device.allocate(sizeof(LikeliestToken));
  host_likeliest = device.allocate_pinned(sizeof(LikeliestToken));
  logits = device.allocate(DType::f32, {vocabulary});
  host_logits = device.allocate_pinned(logits.bytes());
}

/// Ranks that split layers divide rows, so a pass has a multiple of their number: tokens before are computed again, and
/// a text that is too short has zeros behind it, which no token sees.
void Decoder::begin_text(std::span<const std::uint32_t> text, std::int64_t done) {
  const std::int64_t size = std::ssize(text);
  DDP_CHECK(done >= 0 && done < size && size <= longest_text(),
            "decoder: {} of {} tokens of a text are done, at most {} fit", done, size, longest_text());
  const std::int64_t slices = options_.slice.count;
  const std::int64_t rows = (size - done + slices - 1) / slices * slices;
  const std::int64_t first_position = std::max<std::int64_t>(0, size - rows);
  if (!text_) text_.emplace(device_, memory_.sequence() + 1, config_.vocabulary);
  text_->last_row = size - 1 - first_position;
  device_.synchronize();  // an earlier pass may still read the memory
  *text_->position() = first_position;
  std::uint32_t* const tokens = text_->tokens();
  std::fill(std::copy(text.begin() + first_position, text.end(), tokens), tokens + rows + 1,
            0u);  // the last has no row

  micro_batch_ = {};
  micro_batch_.training = false;
  batch_ = {};
  batch_.count = 1;
  batch_.order = {.dataset_size = 1, .shuffle = false};
  batch_.source = {static_cast<const TokenSegmentView*>(text_->segment.data()), 1, 1, static_cast<std::uint32_t>(rows),
                   sizeof(std::uint32_t)};
  batch_.first_position = static_cast<const std::int64_t*>(text_->input.data());
  split_vocabulary();
  fit({1, rows, batch_.first_position});
}

/// Passes over one token are all the same but for what they read from memory, so the device can replay one of them. The
/// first of them is queued as it is: what is captured must have run once.
void Decoder::forward_text(const BeforeUnit& before_unit) {
  const bool replays = batch_.source.sequence == 1 && stage_.is_whole() && group_ == nullptr && before_unit == nullptr;
  if (replays && text_->has_run && text_->replayed == nullptr) {
    const WholeDevice whole(device_);  // no other rank takes part
    text_->replayed = device_.capture([this] { queue_text(nullptr); });
  }
  if (replays && text_->replayed != nullptr) {
    text_->replayed->launch();
    return;
  }
  queue_text(before_unit);
  text_->has_run = text_->has_run || replays;
}

void Decoder::queue_text(const BeforeUnit& before_unit) {
  const std::size_t tokens = batch_.source.sequence + 1;
  const Stream stream = device_.compute_stream();
  device_.copy(text_->input.data(), text_->host.data(), sizeof(std::int64_t) + tokens * sizeof(std::uint32_t), stream);
  for (std::size_t unit = 0; unit < static_cast<std::size_t>(stage_.units()); ++unit) {
    if (before_unit) before_unit(unit);
    forward(unit);
  }
  if (!stage_.has_head()) return;
  text_->newest_logits = head_.next_logits(final_norm_.output, text_->last_row);
  device_.get<LossOps>().likeliest_token(text_->newest_logits, static_cast<LikeliestToken*>(text_->likeliest.data()));
  device_.copy(text_->host_likeliest.data(), text_->likeliest.data(), sizeof(LikeliestToken), stream);
}

std::span<const float> Decoder::next_logits() {
  const Stream stream = device_.compute_stream();
  const Tensor values = text_->logits.view(DType::f32, text_->newest_logits.shape);
  device_.convert(text_->newest_logits, values, stream);
  device_.copy(text_->host_logits.data(), values.data, values.bytes(), stream);
  device_.synchronize();
  return {static_cast<const float*>(text_->host_logits.data()), static_cast<std::size_t>(config_.vocabulary)};
}

std::optional<std::uint32_t> Decoder::likeliest_token() {
  device_.synchronize();
  const auto& likeliest = *static_cast<const LikeliestToken*>(text_->host_likeliest.data());
  return likeliest.all_finite != 0 ? std::optional(likeliest.token) : std::nullopt;
}

}  // namespace ddptrain
