#include "models/decoder/config.h"

#include <algorithm>

#include "data/text/tokens.h"
#include "runtime/core/error.h"

namespace ddptrain {

AttentionKind DecoderConfig::attention() const {
  return {.heads = heads,
          .key_heads = key_heads,
          .head_size = head_size,
          .rotary = {positions == PositionKind::rotary ? rotary_base : 0.0, rotary_scaling},
          .normalises_heads = normalises_heads,
          .qkv_bias = qkv_bias,
          .output_bias = output_bias};
}

VocabularyRows DecoderConfig::vocabulary_rows(const TensorSlice& slice) const {
  if (slice.count == 1) return {0, vocabulary, (vocabulary + 127) / 128 * 128};
  constexpr std::int64_t kMultiple = 16;  // rows and columns of matrix multiplications on GPUs
  const std::int64_t padded = ((vocabulary + slice.count - 1) / slice.count + kMultiple - 1) / kMultiple * kMultiple;
  const std::int64_t first = slice.index * padded;
  return {first, std::min(padded, vocabulary - first), padded};
}

void check_config(const DecoderConfig& config, const SizeNames& names) {
  const auto within = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) usage_error("{}{} {}: give 1 to {}", names.where, name, value, most);
  };
  within(names.layers, config.layers, 1000);
  within(names.width, config.width, 65536);
  within(names.heads, config.heads, 65536);
  within(names.hidden, config.hidden, 1 << 20);
  within(names.sequence, config.sequence, 1 << 20);
  within(names.vocabulary, config.vocabulary, kMostTokens);
  if (config.head_size < 1) {
    usage_error("{}{} {}: give a number that divides {} {}", names.where, names.heads, config.heads, names.width,
                config.width);
  }
  within(names.key_heads, config.key_heads, config.heads);
  within(names.head_size, config.head_size, 65536);
  if (config.heads % config.key_heads != 0) {
    usage_error("{}{} {}: give a number that divides {} {}", names.where, names.key_heads, config.key_heads,
                names.heads, config.heads);
  }
  if (config.positions == PositionKind::rotary && config.head_size % 2 != 0) {
    usage_error("{}{} {}: give an even number, because rotary positions turn pairs", names.where, names.head_size,
                config.head_size);
  }
}

void check_slices(const DecoderConfig& config, std::int64_t slices, const SizeNames& names) {
  const auto divides = [&](const char* what, std::int64_t value) {
    if (value % slices != 0)
      usage_error("--tp {}: it does not divide {} {}. Give a number that does.", slices, what, value);
  };
  divides(names.heads, config.heads);
  divides(names.key_heads, config.key_heads);
  divides(names.hidden, config.hidden);
  divides(names.sequence, config.sequence);
  if (config.vocabulary_rows({slices, slices - 1}).count < 1) {
    usage_error("--tp {}: {} {} has no token left for the last rank. Give a smaller number.", slices, names.vocabulary,
                config.vocabulary);
  }
}

}  // namespace ddptrain
