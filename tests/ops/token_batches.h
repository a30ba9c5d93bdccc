#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// A text as one segment on a device, and the batch of its windows first, first + 1, ... (not shuffled). A token has
/// two bytes if that is enough for all, otherwise four.
inline TokenBatch put_tokens(Bench& bench, const std::vector<std::uint32_t>& text, std::int64_t count,
                             std::uint32_t sequence, std::uint32_t first = 0) {
  const std::uint8_t token_bytes = *std::ranges::max_element(text) < 65536 ? 2 : 4;
  std::vector<std::uint8_t> bytes;
  for (const std::uint32_t token : text) {
    for (int i = 0; i < token_bytes; ++i) bytes.push_back(static_cast<std::uint8_t>(token >> (8 * i)));
  }
  const Tensor memory = bench.put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())});
  TokenBatch batch;
  batch.source.segments = bench.put_object(TokenSegmentView{memory.data, 0});
  batch.source.segment_count = 1;
  batch.source.window_count = static_cast<std::uint32_t>((text.size() - 1) / sequence);
  batch.source.sequence = sequence;
  batch.source.token_bytes = token_bytes;
  batch.order = {77, batch.source.window_count, 2, static_cast<std::uint32_t>(count), first, false};
  batch.step = {bench.put_object(StepState{3}), 1};
  batch.count = count;
  return batch;
}

/// Tokens below `vocabulary`, low ones more often.
inline std::vector<std::uint32_t> random_text(std::int64_t size, std::int64_t vocabulary, std::uint32_t seed = 9) {
  std::vector<std::uint32_t> text;
  for (const double value : random_values(size, seed, 0.0, 1.0)) {
    text.push_back(static_cast<std::uint32_t>(value * value * static_cast<double>(vocabulary)));
  }
  return text;
}

/// A batch of shuffled windows of a random text.
inline TokenBatch random_tokens(Bench& bench, std::int64_t count, std::uint32_t sequence, std::int64_t vocabulary,
                                std::uint32_t first = 0) {
  const std::int64_t windows = 2 * (count + first) + 3;
  TokenBatch batch = put_tokens(bench, random_text(windows * sequence + 1, vocabulary), count, sequence, first);
  batch.order.shuffle = true;
  return batch;
}

}  // namespace ddptrain::tests
