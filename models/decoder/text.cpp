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

/// Ranks that split layers divide rows, so a pass has a multiple of their number: tokens before are computed again, and
/// a text that is too short has zeros behind it, which no token sees.
void Decoder::begin_text(std::span<const std::uint32_t> text, std::int64_t done) {
  const std::int64_t size = std::ssize(text);
  DDP_CHECK(done >= 0 && done < size && size <= longest_text(),
            "decoder: {} of {} tokens of a text are done, at most {} fit", done, size, longest_text());
  const std::int64_t slices = options_.slice.count;
  const std::int64_t rows = (size - done + slices - 1) / slices * slices;
  const std::int64_t first_position = std::max<std::int64_t>(0, size - rows);
  last_row_ = size - 1 - first_position;
  std::vector<std::uint32_t> window(static_cast<std::size_t>(rows + 1));  // the last has no input of its own
  std::copy(text.begin() + first_position, text.end(), window.begin());
  if (!text_tokens_) {
    text_tokens_ = device_.allocate(static_cast<std::size_t>(memory_.sequence() + 1) * sizeof(std::uint32_t));
    text_position_ = device_.allocate(sizeof(first_position));
    text_segment_ = device_.allocate(sizeof(TokenSegmentView));
    const TokenSegmentView segment{text_tokens_.data(), 0};
    device_.copy_to_device(text_segment_.data(), &segment, sizeof(segment));
  }
  device_.copy_to_device(text_tokens_.data(), window.data(), window.size() * sizeof(std::uint32_t));
  device_.copy_to_device(text_position_.data(), &first_position, sizeof(first_position));

  micro_batch_ = {};
  micro_batch_.training = false;
  batch_ = {};
  batch_.count = 1;
  batch_.order = {.dataset_size = 1, .shuffle = false};
  batch_.source = {static_cast<const TokenSegmentView*>(text_segment_.data()), 1, 1, static_cast<std::uint32_t>(rows),
                   sizeof(std::uint32_t)};
  batch_.first_position = static_cast<const std::int64_t*>(text_position_.data());
  split_vocabulary();
  fit({1, rows, batch_.first_position});
}

std::vector<float> Decoder::next_logits() {
  const Tensor logits = head_.next_logits(final_norm_.output, last_row_);
  const Buffer converted = device_.allocate(DType::f32, logits.shape);
  const Tensor values = converted.view(DType::f32, logits.shape);
  device_.convert(logits, values, device_.compute_stream());
  std::vector<float> host(static_cast<std::size_t>(values.size()));
  device_.copy_to_host(host.data(), values.data, values.bytes());
  return host;
}

}  // namespace ddptrain
