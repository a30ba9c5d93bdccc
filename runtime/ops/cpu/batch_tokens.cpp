#include "runtime/ops/cpu/batch_tokens.h"

#include "runtime/core/error.h"

namespace ddptrain {

std::vector<std::uint32_t> batch_tokens(const char* what, const TokenBatch& batch, std::int64_t vocabulary) {
  const std::uint32_t length = batch.source.sequence + 1;
  const BatchRows rows(batch.order, batch.step);
  std::vector<std::uint32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(batch.count) * length);
  for (std::uint32_t row = 0; row < static_cast<std::uint32_t>(batch.count); ++row) {
    const TokenWindow window = batch.source.window(rows[row]);
    for (std::uint32_t position = 0; position < length; ++position) {
      const std::uint32_t token = window[position];
      const std::int64_t all = batch.part.all > 0 ? batch.part.all : vocabulary;
      DDP_CHECK(token < all, "{}: token {} of window {} is not below the vocabulary's {}", what, token, rows[row], all);
      tokens.push_back(token);
    }
  }
  return tokens;
}

}  // namespace ddptrain
