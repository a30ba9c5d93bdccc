#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// The tokens of a batch, [count, sequence + 1]: a window's inputs, and one place further on their targets. Throws
/// Error if one is not below `vocabulary`; `what` names the operation.
std::vector<std::uint32_t> batch_tokens(const char* what, const TokenBatch& batch, std::int64_t vocabulary);

}  // namespace ddptrain
