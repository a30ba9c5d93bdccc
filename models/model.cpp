#include "models/model.h"

#include <algorithm>

#include "runtime/core/error.h"

namespace ddptrain {

std::int64_t ParameterSpec::padded_size() const {
  const std::int64_t rows = shape.empty() ? 1 : shape[0];
  return rows > 0 ? size() / rows * std::max(rows, padded_rows) : 0;
}

std::vector<float> Model::next_token_logits(const TokenBatch&, std::int64_t) {
  fail("this model does not predict tokens");
}

}  // namespace ddptrain
